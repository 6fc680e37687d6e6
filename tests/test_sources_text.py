"""Tables of texts: the encodings of the libraries themselves, labels as they are, and a name for every bad row."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from onnxmill.calibration.samples import Expected, check
from onnxmill.calibration.sources import Source
from onnxmill.calibration.sources_text import Part, TextSettings, TextTable
from onnxmill.tasks.errors import InputError

KEY = "data.calibration"
SENTENCES = ["the cat sat on the mat", "a dog, a log", 'he said "yes", twice', "line one\nline two", "naïve café 日本"]
INPUTS: dict[str, Part] = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def made_tokenizer(*special: str) -> Tokenizer:
    """BPE trained on the sentences, with BERT's template."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = ["[UNK]", "[CLS]", "[SEP]", *special]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=80, special_tokens=tokens, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def chosen(folder: Path, tokenizer: Tokenizer | None = None, **changed: object) -> TextSettings:
    path = folder / "tokenizer.json"
    if tokenizer or not path.exists():
        (tokenizer or made_tokenizer("[PAD]")).save(str(path))
    given = {"tokenizer": path, "column": "text", "inputs": INPUTS, "dtypes": dict.fromkeys(INPUTS, "int64")}
    return TextSettings(**{**given, "max_length": 12, **changed})  # type: ignore[arg-type]


def csv_file(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet_file(folder: Path, **columns: object) -> Path:
    parquet.write_table(pa.table(columns), folder / "table.parquet")
    return folder / "table.parquet"


def labels(table: TextTable) -> list[object]:
    found = [table.label(index) for index in range(len(table))]
    assert all(label is not None and label.shape == () for label in found)
    return [label.item() for label in found if label is not None]


# --- encodings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["max_length", "none"])
@pytest.mark.parametrize("pair", [None, "other"])
@pytest.mark.parametrize("max_length", [5, 12, 64])
def test_encodings_are_those_of_transformers(tmp_path: Path, padding: str, pair: str | None, max_length: int) -> None:
    from transformers import PreTrainedTokenizerFast

    settings = chosen(tmp_path, padding=padding, pair=pair, max_length=max_length)
    table: Source = TextTable(KEY, parquet_file(tmp_path, text=SENTENCES, other=SENTENCES[::-1]), settings)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(settings.tokenizer), pad_token="[PAD]")
    assert len(table) == len(SENTENCES)
    for index, (text, other) in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True)):
        expected = reference(
            text,
            other if pair else None,
            max_length=max_length,
            truncation=True,
            padding="max_length" if padding == "max_length" else False,
            return_token_type_ids=True,
            return_tensors="np",
        )
        sample = table.sample(index)
        assert list(sample) == list(INPUTS)
        for name in INPUTS:
            assert np.array_equal(sample[name], expected[name]), (index, name)
    length = max_length if padding == "max_length" else "length"
    check(KEY, "sample 0", table.sample(0), {name: Expected("int64", ("batch", length)) for name in INPUTS})


def test_padding_and_truncation_follow_the_tokenizers_own(tmp_path: Path) -> None:
    tokenizer = made_tokenizer("<mine>")
    tokenizer.enable_padding(direction="left", pad_id=3, pad_token="<mine>", pad_type_id=1, pad_to_multiple_of=8)
    tokenizer.enable_truncation(4, direction="left")
    path = parquet_file(tmp_path, text=["cat", " ".join(SENTENCES)])
    table = TextTable(KEY, path, chosen(tmp_path, tokenizer))  # saves it with its padding
    tokenizer.no_truncation()
    tokenizer.no_padding()
    short, long = (tokenizer.encode(text).ids for text in ("cat", " ".join(SENTENCES)))
    sample = table.sample(0)
    gap = 12 - len(short)
    assert sample["input_ids"].tolist() == [[3] * gap + short]
    assert sample["attention_mask"].tolist() == [[0] * gap + [1] * len(short)]
    assert sample["token_type_ids"].tolist() == [[1] * gap + [0] * len(short)]
    assert table.sample(1)["input_ids"].tolist() == [[1, *long[-11:-1], 2]]
    unpadded = TextTable(KEY, path, chosen(tmp_path, padding="none"))
    assert unpadded.sample(0)["input_ids"].tolist() == [short]


@pytest.mark.parametrize(("special", "pad_id"), [(["<x>", "[PAD]"], 4), (["<x>", "<pad>"], 4), ([], 0)])
def test_a_pad_token_by_its_common_names_else_0(tmp_path: Path, special: list[str], pad_id: int) -> None:
    table = TextTable(KEY, parquet_file(tmp_path, text=["a"]), chosen(tmp_path, made_tokenizer(*special)))
    assert table.sample(0)["input_ids"][0, 3:].tolist() == [pad_id] * 9


def test_inputs_and_dtypes_are_those_of_the_settings(tmp_path: Path) -> None:
    inputs: dict[str, Part] = {"m": "attention_mask", "i": "ids"}
    settings = chosen(tmp_path, inputs=inputs, dtypes={"m": "bool", "i": "int32"})
    sample = TextTable(KEY, parquet_file(tmp_path, text=["a cat"]), settings).sample(0)
    assert [(name, array.dtype.name, array.shape) for name, array in sample.items()] == [
        ("m", "bool", (1, 12)),
        ("i", "int32", (1, 12)),
    ]


# --- files -----------------------------------------------------------------------------------------------------------

cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_text_survives_both_kinds_of_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    quoted = ['"' + text.replace('"', '""') + '","' + other.replace('"', '""') + '"\r\n' for text, other in rows]
    texts, others = zip(*rows, strict=True)
    files = csv_file(folder, "text,other\r\n" + "".join(quoted)), parquet_file(folder, text=texts, other=others)
    chosen_settings = chosen(folder, pair="other", padding="none", max_length=500)
    reference = Tokenizer.from_file(str(chosen_settings.tokenizer))
    for path in files:
        table = TextTable(KEY, path, chosen_settings)
        found = [table.sample(index)["input_ids"][0].tolist() for index in range(len(table))]
        assert found == [reference.encode(text, other).ids for text, other in rows], path


def test_a_byte_order_mark_blank_lines_and_other_columns(tmp_path: Path) -> None:
    path = csv_file(tmp_path, b'\xef\xbb\xbftext,x,label\n"a, ""b""",\xff,1\n\n"c\nd",,2\n')
    table = TextTable(KEY, path, chosen(tmp_path, label="label"))
    assert (len(table), labels(table), table.origin(1)) == (2, [1, 2], "row 1")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["1", " -2"], [1, -2]),
        (["1", "2.5e1"], [1.0, 25.0]),
        (["1", "b"], ["1", "b"]),
        (["1_0", "2"], ["1_0", "2"]),
        (["nan", "1"], ["nan", "1"]),
        (["a,b", "c"], ["a,b", "c"]),
    ],
)
def test_labels_of_a_csv(tmp_path: Path, fields: list[str], expected: list[object]) -> None:
    path = csv_file(tmp_path, "label,text\n" + "".join(f'"{field}",a\n' for field in fields))
    found = labels(TextTable(KEY, path, chosen(tmp_path, label="label")))
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize("values", [[1, 2], [0.5, 1.0], ["x", "y"], [True, False]])
def test_labels_of_a_parquet_keep_their_type(tmp_path: Path, values: list[object]) -> None:
    path = parquet_file(tmp_path, text=["a", "b"], label=values)
    found = labels(TextTable(KEY, path, chosen(tmp_path, label="label")))
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


def test_no_label_and_a_label_that_is_the_text(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "text\n12\n7\n")
    assert TextTable(KEY, path, chosen(tmp_path)).label(0) is None
    table = TextTable(KEY, path, chosen(tmp_path, label="text"))
    assert labels(table) == [12, 7]
    assert table.sample(0)["attention_mask"].any()


def test_a_column_with_a_dot(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, **{"a.text": ["cat"], "a": ["dog"]})
    table = TextTable(KEY, path, chosen(tmp_path, column="a.text", padding="none"))
    assert table.sample(0)["input_ids"][0].tolist() == made_tokenizer("[PAD]").encode("cat").ids


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("texts,label\na,1\n", "'text': no column of table.csv; did you mean 'texts'?"),
        ("text,text,label\na,b,1\n", "2 columns of this name"),
        ("", "no column of table.csv"),
        ("text,label\n", "has no row"),
        ("text,label\na,1\n  ,2\n", "'table.csv': row 1, column 'text' is empty"),
        ("text,label\na,1\nb,\n", "row 1, column 'label' is empty"),
        ("text,label\na,1\nb\n", "row 1 (line 3) has 1 fields, the header 2"),
        ("text,label\na,b,1\n", "row 0 (line 2) has 3 fields, the header 2"),
        ('text,label\na,1\n"b,2\n', "is no csv: line 3"),
        ("text,label\n" + "a" * 200_000 + ",1\n", "field larger than field limit"),
        (b"text,label\na,1\nb,2\n\xe9t\xe9,3\n", "row 2, column 'text' is not UTF-8 text"),
        ("text,label\na,1\n".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_a_csv_that_is_refused(tmp_path: Path, content: str | bytes, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        TextTable(KEY, csv_file(tmp_path, content), chosen(tmp_path, label="label"))
    assert str(caught.value).startswith(f"{KEY}: ")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"txt": ["a"], "label": [1]}, "no column of table.parquet; did you mean 'txt'?"),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())}, "has no row"),
        ({"text": ["a", None], "label": [1, 2]}, "'table.parquet': row 1, column 'text' is missing"),
        ({"text": ["a", ""], "label": [1, 2]}, "row 1, column 'text' is empty"),
        ({"text": [5], "label": [1]}, "row 0, column 'text' is a int, must be text"),
        ({"text": [b"a"], "label": [1]}, "row 0, column 'text' is a bytes, must be text"),
        ({"text": ["a", "b"], "label": [1.0, float("nan")]}, "row 1, column 'label' is missing"),
        ({"text": ["a", "b"], "label": [1, None]}, "row 1, column 'label' is missing"),
        ({"text": ["a"], "label": [[1]]}, "row 0, column 'label' is a list, must be text or a number"),
    ],
)
def test_a_parquet_that_is_refused(tmp_path: Path, columns: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        TextTable(KEY, parquet_file(tmp_path, **columns), chosen(tmp_path, label="label"))
    assert fault in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, fault in (
        ("missing.csv", "cannot be read: No such file"),
        ("missing.parquet", "cannot be read as parquet"),
        ("table.tsv", "is no table"),
    ):
        with pytest.raises(InputError, match=fault):
            TextTable(KEY, tmp_path / name, chosen(tmp_path))
    for content in (b"", b"text\na\n", parquet_file(tmp_path, text=["a"]).read_bytes()[:100]):
        with pytest.raises(InputError, match="cannot be read as parquet"):
            TextTable(KEY, csv_file(tmp_path, content, "table.parquet"), chosen(tmp_path))


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"vocab": {"a": 1}}', None])
def test_a_tokenizer_that_is_none(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "vocab.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"vocab.json': is no Hugging Face tokenizer.json"):
        TextTable(KEY, csv_file(tmp_path, "text\na\n"), replace(chosen(tmp_path), tokenizer=path))


def test_settings_that_do_not_fit_the_tokenizer(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "text\na\n")
    with pytest.raises(InputError, match="max_length leaves no room for text: the tokenizer adds 2 special tokens"):
        TextTable(KEY, path, chosen(tmp_path, max_length=2))
    with pytest.raises(InputError, match=r"max_length leaves no room .* adds 3 .*Use at least 4"):
        TextTable(KEY, path, chosen(tmp_path, max_length=3, pair="text"))
    large = Tokenizer(models.WordLevel({f"w{i}": i for i in range(300)}, "w0"))
    with pytest.raises(InputError, match=r"'uint8': dtype of input 'input_ids' cannot hold .* up to 299"):
        TextTable(KEY, path, chosen(tmp_path, large, dtypes=dict.fromkeys(INPUTS, "uint8")))


def test_a_text_without_a_token_is_named(tmp_path: Path) -> None:
    bare = Tokenizer(models.BPE())  # no special token, none for the unknown
    table = TextTable(KEY, csv_file(tmp_path, "text\na\n"), chosen(tmp_path, bare, padding="max_length"))
    with pytest.raises(InputError, match=r"'table.csv': row 0, column 'text' gives no token"):
        table.sample(0)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = chosen(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install onnxmill\[text\]"):
        TextTable(KEY, csv_file(tmp_path, "text\na\n"), settings)
