"""Samples from paths in a spec: real files through pack and step to stored samples, and every fault as one line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array, Sample
from onnxmill.tasks import conversion
from onnxmill.tasks.artifact import Store
from onnxmill.tasks.conversion import Done
from onnxmill.tasks.data import CALIBRATION, calibration_settings, collect, evaluation_settings, step_of
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.pack import pack
from onnxmill.tasks.spec import Spec, parse

X = np.linspace(-1, 1, 40 * 6, dtype=np.float32).reshape(40, 2, 3)
LABELS = np.arange(40) % 4
WORDS = [f"word{i}" for i in range(30)]

FLOATS: dict[str, object] = {"x": {"shape": ["batch", 2, 3]}}
PIXELS: dict[str, object] = {"image": {"shape": ["batch", 3, 8, 8]}}
TOKENS: dict[str, object] = {
    name: {"dtype": "int64", "shape": ["batch", "length"]} for name in ("input_ids", "attention_mask")
}


def write_npy(folder: Path) -> None:
    np.save(folder / "x.npy", X)


def write_npz(folder: Path) -> None:
    np.savez(folder / "calibration.npz", x=X[:20], label=LABELS[:20])
    np.savez(folder / "evaluation.npz", x=X[20:], label=LABELS[20:])


def write_requests(folder: Path) -> None:
    for day, rows in {"calibration": range(0, 20, 4), "evaluation": range(20, 40, 4)}.items():
        (folder / day).mkdir()
        for start in rows:
            np.savez(folder / day / f"{start:03d}.npz", x=X[start : start + 4], label=LABELS[start : start + 4])


def write_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("calibration", "evaluation"):
        for index in range(12):
            path = folder / name / ("cats" if index % 3 else "birds") / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (10, 12, 3), np.uint8)).save(path)


def write_text(folder: Path) -> None:
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "words").mkdir()
    tokenizer.save(str(folder / "words" / "tokenizer.json"))
    for name, first in {"calibration": 0, "evaluation": 15}.items():
        lines = [f"{WORDS[i]} {WORDS[i - 1]},{i % 3}" for i in range(first, first + 15)]
        (folder / f"{name}.csv").write_text("\n".join(["sentence,class", *lines]))


TEXT = {"tokenizer": "words/tokenizer.json", "column": "sentence", "label": "class", "max_length": 4}


@dataclass(frozen=True)
class Kind:
    """A kind of source: how it is written, the spec's `data`, the inputs, and how many samples it has of each."""

    write: object
    data: Mapping[str, object]
    inputs: Mapping[str, object]
    calibration: int
    evaluation: int


KINDS = {
    "npy": Kind(write_npy, {"calibration": "x.npy"}, FLOATS, 40, 0),
    "npz": Kind(write_npz, {"calibration": "calibration.npz", "evaluation": "evaluation.npz"}, FLOATS, 20, 20),
    "requests": Kind(write_requests, {"calibration": "calibration", "evaluation": "evaluation"}, FLOATS, 20, 20),
    "images": Kind(write_images, {"calibration": "calibration", "evaluation": "evaluation"}, PIXELS, 12, 12),
    "text": Kind(
        write_text, {"calibration": "calibration.csv", "evaluation": "evaluation.csv", "text": TEXT}, TOKENS, 15, 15
    ),
}


def spec_of(kind: Kind, inputs: Mapping[str, object] | None = None, /, **data: object) -> str:
    source = {"framework": "torch", "loader": "model.py:load"}
    return yaml.safe_dump(
        {
            "version": 1,
            "name": "n",
            "source": source,
            "inputs": dict(inputs or kind.inputs),
            "data": {**kind.data, **data},
        },
        sort_keys=False,
    )


def spec_file(folder: Path, kind: Kind, **data: object) -> Path:
    (folder / "spec.yaml").write_text(spec_of(kind, **data))
    return folder / "spec.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec's folder; the store is beside it."""
    monkeypatch.setenv("ONNXMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONNXMILL_LOADER_ROOTS", str(tmp_path / "spec"))
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "model.py").write_text("def load(): ...")
    return tmp_path / "spec"


def kept(done: Done | None) -> list[Sample]:
    assert done is not None
    return list(samples.read(conversion.store().open(done.files)))


@pytest.mark.integration
@pytest.mark.parametrize("name", KINDS)
def test_a_spec_takes_samples_of_every_kind(folder: Path, name: str) -> None:
    kind = KINDS[name]
    kind.write(folder)  # type: ignore[operator]  # a function
    job = conversion.prepare(spec_file(folder, kind, samples=8))
    taken = conversion.samples(job)
    calibration = kept(taken.calibration)
    assert len(calibration) == 8
    assert {tuple(sample.inputs) for sample in calibration} == {tuple(kind.inputs)}
    assert {sample.label for sample in calibration} == {None}
    if kind.evaluation:
        evaluation = kept(taken.evaluation)
        assert len(evaluation) == kind.evaluation
        assert all(sample.label is not None for sample in evaluation)
    assert [row.cached for row in conversion.samples(job).rows] == [True] * len(taken.rows)
    again = conversion.samples(conversion.prepare(spec_file(folder, kind, samples=8, seed=1)))
    assert [samples.sha256(s.inputs) for s in kept(again.calibration)] != [
        samples.sha256(s.inputs) for s in calibration
    ]
    assert [row.cached for row in again.rows] == [False, True][: len(again.rows)]  # all of evaluation are taken anyway


@dataclass(frozen=True)
class Taking:
    """What a spec's calibration or evaluation samples are taken with, in this process."""

    folder: Path

    def __call__(self, text: str, *, evaluation: bool = False) -> list[Sample]:
        spec = parse(text)
        store = Store(self.folder.parent / "store")
        packed = pack(spec, self.folder, store)
        assert packed.data
        settings_of = evaluation_settings if evaluation else calibration_settings
        settings = settings_of(spec.data, spec.contract, packed.paths)
        assert settings
        with store.workspace() as out:
            collect(settings, store.open(packed.data.artifact), out)
            return list(samples.read(out))


@pytest.fixture
def take(folder: Path) -> Taking:
    return Taking(folder)


def values(found: list[Sample], name: str) -> Array:
    return np.concatenate([sample.inputs[name] for sample in found])


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_rows_of_arrays_in_their_order(folder: Path, take: Taking) -> None:
    write_npy(folder)
    assert np.array_equal(values(take(spec_of(KINDS["npy"])), "x"), X)


def test_each_class_of_labels_has_its_share(folder: Path, take: Taking) -> None:
    np.savez(folder / "calibration.npz", x=X, label=np.arange(40) < 10)
    rows = values(take(spec_of(KINDS["npz"], evaluation=None, samples=8)), "x")
    assert sum(any(np.array_equal(row, x) for x in X[:10]) for row in rows) == 2


def test_labels_of_images_are_their_folders(folder: Path, take: Taking) -> None:
    write_images(folder)
    found = take(spec_of(KINDS["images"]), evaluation=True)
    assert [int(sample.label) for sample in found if sample.label is not None] == [0] * 4 + [1] * 8
    assert found[0].inputs["image"].dtype == np.float32
    assert 0 <= values(found, "image").min() < 0.1
    assert 0.9 < values(found, "image").max() <= 1


def test_images_as_the_spec_says(folder: Path, take: Taking) -> None:
    write_images(folder)
    images = {"size": [4, 6], "mode": "bgr", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "resize": "stretch"}
    inputs = {"image": {"shape": ["batch", "h", "w", 3]}}
    (sample, *_) = take(spec_of(KINDS["images"], inputs, images=images))
    assert sample.inputs["image"].shape == (1, 4, 6, 3)
    assert -1 <= sample.inputs["image"].min() < -0.2


def test_raw_pixels_for_uint8(folder: Path, take: Taking) -> None:
    write_images(folder)
    inputs = {"image": {"dtype": "uint8", "shape": [1, 3, 8, 8]}}
    assert take(spec_of(KINDS["images"], inputs))[0].inputs["image"].max() > 200


def test_tokens_with_labels(folder: Path, take: Taking) -> None:
    write_text(folder)
    found = take(spec_of(KINDS["text"]), evaluation=True)
    assert found[1].inputs["input_ids"].tolist() == [[2 + 16, 2 + 15, 0, 0]]
    assert found[1].inputs["attention_mask"].tolist() == [[1, 1, 0, 0]]
    assert [int(sample.label) for sample in found if sample.label is not None][:4] == [0, 1, 2, 0]


def test_inputs_of_other_names_take_what_the_spec_says(folder: Path, take: Taking) -> None:
    write_text(folder)
    text = TEXT | {"padding": "none", "inputs": {"tokens": "ids"}}
    inputs = {"tokens": {"dtype": "int32", "shape": [1, "n"]}}
    assert take(spec_of(KINDS["text"], inputs, text=text))[1].inputs["tokens"].tolist() == [[3, 2]]


def test_a_path_needs_no_code_of_the_users(folder: Path) -> None:
    write_text(folder)
    spec = parse(spec_of(KINDS["text"]))
    paths = pack(spec, folder, Store(folder.parent / "store")).paths
    settings = calibration_settings(spec.data, spec.contract, paths)
    assert settings
    step = step_of(CALIBRATION, settings)
    assert (step.user_code, step.tools) == (None, ("numpy", "tokenizers", "pyarrow"))
    assert str(folder.parent) not in settings.model_dump_json()  # a key holds no path of this machine


# --- what is wrong ---------------------------------------------------------------------------------------------------


def broken(folder: Path, **arrays: Array) -> None:
    np.savez(folder / "calibration.npz", allow_pickle=False, **arrays)


def with_nan(row: int) -> Array:
    x = X.copy()
    x[row, 1, 2] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": with_nan(7)}, "sample 7 (row 7), input 'x' holds 1 values that are not finite"),
        ({"x": X.astype(np.float64)}, "sample 0 (row 0), input 'x' has dtype float64, must be float32"),
        ({"x": X[:, :, :2]}, "sample 0 (row 0), input 'x' has shape [1, 2, 2], must be [batch, 2, 3]"),
        ({"y": X}, "'y': sample 0 (row 0) has an input that the spec does not; Choices: x"),
        ({"x": X, "y": X}, "'y': sample 0 (row 0) has an input that the spec does not; Choices: x"),
        ({"x": X, "label": LABELS[:3]}, "'calibration.npz': its arrays differ in their number of samples"),
    ],
)
def test_a_bad_array_is_named_by_row_and_input(
    folder: Path, take: Taking, arrays: dict[str, Array], words: str
) -> None:
    broken(folder, **arrays)
    with pytest.raises(InputError) as caught:
        take(spec_of(KINDS["npz"], evaluation=None))
    assert str(caught.value).startswith("data.calibration: ")
    assert words in str(caught.value)


def test_a_bad_sample_has_its_index_in_the_source_not_among_the_chosen(folder: Path, take: Taking) -> None:
    broken(folder, x=with_nan(33))
    hits = 0
    for seed in range(6):
        try:
            take(spec_of(KINDS["npz"], evaluation=None, samples=12, seed=seed))
        except InputError as error:
            hits += 1
            assert "sample 33 (row 33), input 'x'" in str(error)  # noqa: PT017  not every seed chooses it
    assert 0 < hits < 6


def test_a_bad_request_has_its_file(folder: Path, take: Taking) -> None:
    write_requests(folder)
    np.savez(folder / "calibration" / "008.npz", x=with_nan(2)[:4])
    with pytest.raises(
        InputError, match=r"sample 10 \(008\.npz, row 2\), input 'x' holds 1 values that are not finite"
    ):
        take(spec_of(KINDS["requests"]))


def test_a_broken_image_has_its_file(folder: Path, take: Taking) -> None:
    write_images(folder)
    path = folder / "calibration" / "cats" / "5.png"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError) as caught:
        take(spec_of(KINDS["images"]))
    assert str(caught.value).startswith("data.calibration: 'cats/5.png': image 9 ")


def test_a_text_without_a_row(folder: Path, take: Taking) -> None:
    write_text(folder)
    (folder / "calibration.csv").write_text("sentence,class\nword1,2\n ,1\n")
    with pytest.raises(InputError, match=r"data\.calibration: 'calibration\.csv': row 1, column 'sentence' is empty"):
        take(spec_of(KINDS["text"]))


@pytest.mark.parametrize("name", ["npz", "requests", "images"])
def test_evaluation_needs_labels(folder: Path, take: Taking, name: str) -> None:
    fix = {"npz": "store them under 'label'", "requests": "store them under 'label'", "images": "in a sub-folder"}[name]
    data = {"calibration": None, "evaluation": {"npz": "e.npz"}.get(name, "e")}
    (folder / "e").mkdir()
    np.savez(folder / ("e.npz" if name == "npz" else "e/0.npz"), x=X)
    if name == "images":
        (folder / "e" / "0.npz").unlink()
        Image.new("RGB", (9, 9)).save(folder / "e" / "0.png")
    with pytest.raises(InputError, match=r"data\.evaluation: .*: sample 0 \(.*\) has no label") as caught:
        take(spec_of(KINDS[name], **data), evaluation=True)
    assert fix in str(caught.value)


@pytest.mark.integration
def test_the_same_file_for_both_is_refused(folder: Path) -> None:
    write_npz(folder)
    job = conversion.prepare(spec_file(folder, KINDS["npz"], evaluation="calibration.npz"))
    with pytest.raises(InputError, match=r"data\.evaluation: shares 20 sample\(s\) with data\.calibration"):
        conversion.samples(job)


@pytest.mark.integration
def test_a_fault_in_the_child_is_the_same_line(folder: Path) -> None:
    broken(folder, x=with_nan(7))
    job = conversion.prepare(spec_file(folder, KINDS["npz"], evaluation=None))
    with pytest.raises(InputError) as caught:
        conversion.samples(job)
    assert caught.value.exit_code == 2
    assert str(caught.value) == ("data.calibration: sample 7 (row 7), input 'x' holds 1 values that are not finite")


# --- settings that do not fit the model ------------------------------------------------------------------------------


def image_of(dtype: str = "float32", *shape: int | str) -> dict[str, object]:
    return {"image": {"dtype": dtype, "shape": list(shape)}}


MISFITS: dict[str, tuple[str, Mapping[str, object], Mapping[str, object], list[str]]] = {
    "npy for two inputs": ("npy", TOKENS, {}, ["data.calibration: 'x.npy'", "gives one input", "give an .npz"]),
    "images for two inputs": ("images", TOKENS, {}, ["data.calibration", "gives one input", "input_ids, attention"]),
    "three axes": ("images", image_of("float32", 3, 8, 8), {}, ["data.images", "[3, 8, 8] is no image", "4 axes"]),
    "int64": ("images", image_of("int64", 1, 3, 8, 8), {}, ["data.images: 'int64'", "float32", "uint8"]),
    "no channels": ("images", image_of("float32", 1, 4, 8, 8), {}, ["data.images.layout", "no axis of 3 channel(s)"]),
    "two axes of channels": (
        "images",
        image_of("float32", 1, 3, 8, 3),
        {},
        ["two axes of 3 channel(s)", "nchw or nhwc"],
    ),
    "another layout": (
        "images",
        image_of("float32", 1, 3, 8, 8),
        {"images": {"layout": "nhwc"}},
        ["data.images.layout: 'nhwc'", "no 3 channel(s) there"],
    ),
    "gray for three": ("images", image_of("float32", 1, 3, 8, 8), {"images": {"mode": "gray"}}, ["as mode gray"]),
    "another size": (
        "images",
        image_of("float32", 1, 3, 8, 8),
        {"images": {"size": [8, 9]}},
        ["data.images.size: [8, 9]", "takes [8, 8]"],
    ),
    "dynamic sides": ("images", image_of("float32", 1, 3, "h", 8), {}, ["data.images.size", "is required", "dynamic"]),
    "scale of uint8": (
        "images",
        image_of("uint8", 1, 3, 8, 8),
        {"images": {"scale": 1.0}},
        ["data.images.scale: 1.0", "takes the pixels as they are"],
    ),
    "two means": (
        "images",
        image_of("float32", 1, 3, 8, 8),
        {"images": {"mean": [0.5, 0.5]}},
        ["data.images.mean: [0.5, 0.5]", "must have 3 value(s)"],
    ),
    "an input that is no text": ("text", TOKENS | FLOATS, {}, ["data.text.inputs", "input 'x' takes", "{x: ids}"]),
    "a part for no input": (
        "text",
        TOKENS,
        {"text": TEXT | {"inputs": {"input_idz": "ids"}}},
        ["data.text.inputs: 'input_idz'", "did you mean 'input_ids'?"],
    ),
    "tokens as floats": ("text", {"input_ids": {"shape": [1, 4]}}, {}, ["'input_ids' is float32", "int64 or int32"]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_source_that_cannot_give_what_the_model_takes(folder: Path, take: Taking, name: str) -> None:
    kind, inputs, data, words = MISFITS[name]
    KINDS[kind].write(folder)  # type: ignore[operator]  # a function
    with pytest.raises(InputError) as caught:
        take(spec_of(KINDS[kind], inputs, **data))
    for word in words:
        assert word in str(caught.value)


def test_specs_of_every_kind_survive_a_dump() -> None:
    for kind in KINDS.values():
        spec = parse(spec_of(kind))
        assert Spec.model_validate(json.loads(spec.model_dump_json())) == spec
