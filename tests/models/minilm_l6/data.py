"""Sentences as the model takes them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

SENTENCES = (
    "A man is playing a guitar on the street.",
    "Someone makes music outdoors.",
    "The stock market fell by three percent on Monday, its worst day since the spring.",
    "Shares dropped sharply at the start of the week.",
    "How do I change the tyre of a bicycle?",
    "Preheat the oven to 200 degrees, then bake the bread for forty minutes.",
    "Hello!",
    "The mitochondrion is an organelle that makes most of the cell's adenosine triphosphate.",
)


def calibration() -> Iterator[dict[str, NDArray[np.int64]]]:
    """The sentences, one at a time, padded to 24 tokens: three arrays `[1, 24]`."""
    tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
    tokenizer.enable_truncation(24)
    tokenizer.enable_padding(length=24)
    for encoded in tokenizer.encode_batch(list(SENTENCES)):
        yield {
            "input_ids": np.array([encoded.ids], dtype=np.int64),
            "attention_mask": np.array([encoded.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([encoded.type_ids], dtype=np.int64),
        }
