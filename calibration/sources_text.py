"""Samples from a table of texts and a tokenizer: the texts are in memory, the tokens of one row at a time."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError, close_match

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Part = Literal["ids", "attention_mask", "type_ids"]
PAD_TOKENS = ("[PAD]", "<pad>")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d{1,18}")  # within int64


@dataclass(frozen=True)
class TextSettings:
    """How a row becomes the model's inputs.

    `tokenizer` is a Hugging Face `tokenizer.json`; `column`, `pair` (the second text, if any) and `label` name columns;
    `inputs` gives for each input the part of the encoding that it takes, `dtypes` its dtype. Longer texts are cut to
    `max_length` tokens, the special ones included; padding "max_length" fills shorter ones up.
    """

    tokenizer: Path
    column: str
    inputs: Mapping[str, Part]
    dtypes: Mapping[str, str]
    max_length: int
    padding: Literal["max_length", "none"] = "max_length"
    pair: str | None = None
    label: str | None = None


class TextTable:
    """The rows of a `.csv` (UTF-8, a header) or `.parquet`, in order.

    Padding uses the token, side and type of the tokenizer's own configuration; where it has none, `[PAD]` or `<pad>` if
    the vocabulary has it, else id 0, on the right. Raises `InputError` for a file that cannot be read, a column that is
    not there, and the first row with an empty or missing text or label.
    """

    def __init__(self, key: str, path: Path, settings: TextSettings) -> None:
        self._key, self._path, self._settings = key, path, settings
        self._tokenizer = _tokenizer(key, settings)
        texts = [settings.column] if settings.pair is None else [settings.column, settings.pair]
        columns = list(dict.fromkeys([*texts, settings.label] if settings.label is not None else texts))
        if path.suffix.lower() not in READERS:
            raise InputError(key, str(path), f"is no table; {close_match(path.suffix, READERS)}")
        found = READERS[path.suffix.lower()](key, path, columns)
        for name in columns:
            _check_column(key, path, name, found[name], text=name in texts)
        self._texts = [found[name] for name in texts]
        self._labels = None if settings.label is None else found[settings.label]
        if self._labels is not None and path.suffix.lower() == ".csv":
            self._labels = _numbers(self._labels)

    def __len__(self) -> int:
        return len(self._texts[0])

    def origin(self, index: int) -> str:
        """The row, counted from 0 without the header."""
        return f"row {index}"

    def label(self, index: int) -> Array | None:
        """A number or a text, as a scalar. A column of a csv is numbers where every row is one."""
        return None if self._labels is None else np.asarray(self._labels[index])

    def sample(self, index: int) -> dict[str, Array]:
        """{input: [1, length]}; length is `max_length` when padded. Raises `InputError` for a text without a token."""
        settings = self._settings
        first, *second = (column[index] for column in self._texts)
        encoding = self._tokenizer.encode(first, second[0] if second else None)
        if not any(encoding.attention_mask):
            where = f"row {index}, column '{settings.column}' gives no token"
            raise InputError(self._key, self._path.name, where, f"See {settings.tokenizer.name}, or leave out the row")
        return {
            name: np.array([getattr(encoding, part)], settings.dtypes[name]) for name, part in settings.inputs.items()
        }


def _tokenizer(key: str, settings: TextSettings) -> "Tokenizer":
    """The tokenizer with truncation and padding as the settings say. Raises `InputError` for a bad file or setting."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(key, None, "text needs the library tokenizers", "pip install onnxmill[text]") from error
    path = settings.tokenizer
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises a bare Exception, for a missing file too
        raise InputError(key, str(path), f"is no Hugging Face tokenizer.json: {error}") from error
    special = tokenizer.num_special_tokens_to_add(settings.pair is not None)
    if settings.max_length <= special:
        expected = f"max_length leaves no room for text: the tokenizer adds {special} special tokens"
        raise InputError(key, settings.max_length, expected, f"Use at least {special + 1}")
    highest = max(tokenizer.get_vocab().values(), default=0)
    for name, part in settings.inputs.items():
        if part == "ids" and np.array([highest]).astype(settings.dtypes[name])[0] != highest:
            expected = f"dtype of input '{name}' cannot hold the tokenizer's ids, up to {highest}"
            raise InputError(key, settings.dtypes[name], expected, "Does the tokenizer belong to the model?")
    side = (tokenizer.truncation or {}).get("direction", "right")
    tokenizer.enable_truncation(settings.max_length, direction=side)
    pad = tokenizer.padding or _padding(tokenizer)
    tokenizer.no_padding()
    if settings.padding == "max_length":
        tokenizer.enable_padding(
            direction=pad["direction"],
            pad_id=pad["pad_id"],
            pad_type_id=pad["pad_type_id"],
            pad_token=pad["pad_token"],
            length=settings.max_length,
        )
    return tokenizer


def _padding(tokenizer: "Tokenizer") -> dict[str, object]:
    """The padding of a tokenizer that says none."""
    known = [token for token in PAD_TOKENS if tokenizer.token_to_id(token) is not None]
    token = known[0] if known else PAD_TOKENS[0]
    return {
        "direction": "right",
        "pad_id": tokenizer.token_to_id(token) if known else 0,
        "pad_type_id": 0,
        "pad_token": token,
    }


def _read_csv(key: str, path: Path, columns: Sequence[str]) -> dict[str, list[object]]:
    """The columns' fields as text. Blank lines are no rows. What is no UTF-8 becomes surrogates, refused by field."""
    found: dict[str, list[object]] = {name: [] for name in columns}
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            _check_header(key, path, header, columns)
            places = [(found[name], header.index(name)) for name in columns]
            rows = 0
            for fields in lines:
                if not fields:
                    continue
                if len(fields) != len(header):
                    where = f"row {rows} (line {lines.line_num}) has {len(fields)} fields, the header {len(header)}"
                    raise InputError(key, path.name, where, "Quote a field that holds a comma or a line break")
                for column, place in places:
                    column.append(fields[place])
                rows += 1
    except csv.Error as error:
        raise InputError(key, path.name, f"is no csv: line {lines.line_num}: {error}") from error
    except OSError as error:
        raise InputError(key, str(path), f"cannot be read: {error.strerror}") from error
    return found


def _read_parquet(key: str, path: Path, columns: Sequence[str]) -> dict[str, list[object]]:
    """The columns' values as Python objects, None where there is none; the other columns are not read."""
    import pyarrow  # type: ignore[import-untyped]  # ships no types
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_header(key, path, file.schema_arrow.names, columns)
            table = file.read(columns=list(columns))
        return {name: table.column(name).to_pylist() for name in columns}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise InputError(key, str(path), f"cannot be read as parquet: {text}") from error


READERS = {".csv": _read_csv, ".parquet": _read_parquet}


def _check_header(key: str, path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
    """Raise `InputError` unless each of the columns is there, once."""
    if not all(map(_is_unicode, header)):
        raise InputError(key, path.name, "is not UTF-8 text (row of the header)", "Save it as UTF-8")
    for name in columns:
        if name not in header:
            raise InputError(key, name, f"no column of {path.name}; {close_match(name, header)}")
        if header.count(name) > 1:
            raise InputError(key, name, f"{path.name} has {header.count(name)} columns of this name")


def _check_column(key: str, path: Path, name: str, values: Sequence[object], *, text: bool) -> None:
    """Raise `InputError` for a column without rows, and for the first row that is no text, or no label."""
    if not values:
        raise InputError(key, path.name, "has no row; give at least one")
    for row, value in enumerate(values):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            fault = "is missing"
        elif isinstance(value, str):
            if value.strip() and _is_unicode(value):
                continue
            fault = "is not UTF-8 text" if value.strip() else "is empty"
        elif text or not isinstance(value, int | float):
            fault = f"is a {type(value).__name__}, must be text" + ("" if text else " or a number")
        else:
            continue
        raise InputError(key, path.name, f"row {row}, column '{name}' {fault}", "Mend the row or take it out")


def _is_unicode(text: str) -> bool:
    """Whether it has no surrogate, which stands for a byte that is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbers(fields: Sequence[object]) -> list[object]:
    """A csv's column as integers, else as floats, else as the text that it is."""
    texts = [str(field).strip() for field in fields]
    if all(map(_INTEGER.fullmatch, texts)):
        return [int(text) for text in texts]
    if all(map(_NUMBER.fullmatch, texts)):
        return [float(text) for text in texts]
    return list(fields)
