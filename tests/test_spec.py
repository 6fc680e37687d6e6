"""The spec: every bad key or value is one `InputError`; what is sound survives dump, YAML and parse."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxmill.calibration.methods import METHODS
from onnxmill.tasks import spec as specs
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.spec import (
    OPSET_MAX,
    OPSET_MIN,
    Contract,
    Data,
    Gate,
    Images,
    Method,
    Metric,
    Promote,
    Source,
    Spec,
    Tensor,
    Variant,
    expand,
    load,
    parse,
)

SOUND: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "source": {"framework": "torch", "loader": "model.py:load"},
    "inputs": {"x": {"shape": ["batch", 3]}},
}
DATA = {"calibration": "data.py:calibration", "evaluation": "data.py:evaluation"}
WORDLIST = {"tokenizer": "tokenizer.json"}


def parsed(**changes: object) -> Spec:
    """The sound spec with some keys replaced."""
    return parse(yaml.safe_dump(SOUND | changes))


def fault(**changes: object) -> InputError:
    with pytest.raises(InputError) as caught:
        parsed(**changes)
    return caught.value


# --- what is sound ---------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    spec = parsed()
    assert [v.label for v in spec.variants] == ["fp32"]
    assert (spec.opset, spec.targets, spec.promote, spec.require) == (18, ("cpu",), None, ())
    assert spec.inputs["x"] == Tensor(dtype="float32", shape=("batch", 3))


def test_with_calibration_data_int8_static_is_a_default_too() -> None:
    assert [v.label for v in parsed(data=DATA).variants] == ["fp32", "int8-static"]


def test_evaluation_data_alone_gives_no_int8_static() -> None:
    assert [v.label for v in parsed(data={"evaluation": "d.py:f"}).variants] == ["fp32"]


def test_a_variant_is_a_word_or_a_mapping() -> None:
    spec = parsed(
        data=DATA,
        variants=[
            "int8-static",
            {"recipe": "int8-static", "name": "int8-entropy", "method": "entropy", "gate": {"min_sqnr_db": 20}},
        ],
    )
    assert [v.label for v in spec.variants] == ["int8-static", "int8-entropy"]
    assert spec.variants[1].gate == Gate(min_sqnr_db=20.0)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("data.py:calibration", True),
        ("package.module:calibration", True),
        ("data.npz", False),
        ("photos", False),
        ("../a:b/photos.v2", False),
        ("data.py:", False),
        (":calibration", False),
    ],
)
def test_a_callable_is_told_from_a_path(text: str, called: bool) -> None:
    assert specs.names_callable(text) == called


def test_a_path_may_stand_for_a_callable() -> None:
    spec = parsed(
        data={"calibration": "photos", "evaluation": "b.csv", "images": {}, "text": WORDLIST | {"label": "y"}}
    )
    assert spec.data.images == Images()
    assert [v.label for v in spec.variants] == ["fp32", "int8-static"]


def test_one_file_may_stand_without_a_list() -> None:
    assert parsed(source=SOUND["source"] | {"files": "weights.pt"}).source.files == ("weights.pt",)


def test_an_onnx_source_needs_no_inputs() -> None:
    spec = parse("{version: 1, name: n, source: {framework: onnx, path: m.onnx}}")
    assert spec.inputs == {}


@pytest.mark.parametrize("opset", [OPSET_MIN, OPSET_MAX])
def test_the_bounds_of_the_opset_are_offered(opset: int) -> None:
    assert parsed(opset=opset).opset == opset


def test_a_spec_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parsed().opset = 17  # type: ignore[misc]  # what the test tries


# --- what is not -----------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, object], str, list[str]]] = {
    "unknown key": ({"opsett": 18}, "opsett", ["18", "unknown key", "did you mean 'opset'?", "variants"]),
    "unknown key far from all": ({"zzz": 18}, "zzz", ["unknown key; Choices: data"]),
    "unknown source key": ({"source": {"framewrk": "torch"}}, "source.framewrk", ["did you mean 'framework'?"]),
    "unknown data key": ({"data": {"sample": 3}}, "data.sample", ["did you mean 'samples'?"]),
    "unknown metric key": ({"metric": {"fn": "a.py:b", "maxdrop": 1}}, "metric.maxdrop", ["did you mean 'max_drop'?"]),
    "unknown promote key": ({"promote": {"objectiv": 1}}, "promote.objectiv", ["did you mean 'objective'?"]),
    "unknown input key": ({"inputs": {"x": {"shap": [1]}}}, "inputs.x.shap", ["did you mean 'shape'?"]),
    "unknown output key": ({"outputs": {"y": {"dtpye": 1}}}, "outputs.y.dtpye", ["did you mean 'dtype'?"]),
    "unknown variant key": (
        {"variants": [{"recipe": "fp32", "methd": "entropy"}]},
        "variants.0.methd",
        ["did you mean 'method'?"],
    ),
    "unknown gate key": (
        {"variants": [{"recipe": "fp32", "gate": {"min_snr_db": 1}}]},
        "variants.0.gate.min_snr_db",
        ["did you mean 'min_sqnr_db'?"],
    ),
    "framework": ({"source": {"framework": "torhc", "path": "x"}}, "source.framework", ["'torhc'", "did you mean 't"]),
    "dtype": ({"inputs": {"x": {"dtype": "flaot32", "shape": [1]}}}, "inputs.x.dtype", ["did you mean 'float32'?"]),
    "recipe": ({"variants": ["int8-statik"]}, "variants.0.recipe", ["did you mean 'int8-static'?", "fp16"]),
    "method": (
        {"variants": [{"recipe": "int8-static", "method": "entrpy"}]},
        "variants.0.method",
        ["did you mean 'entropy'?"],
    ),
    "target": ({"targets": ["gpu"]}, "targets.0", ["'gpu'", "Choices: cpu"]),
    "no target": ({"targets": []}, "targets", ["at least 1"]),
    "objective": ({"promote": {"objective": "speed"}}, "promote.objective", ["'speed'", "latency, size"]),
    "version": ({"version": 2}, "version", ["2", "must be 1"]),
    "no name": ({"name": None}, "name", ["string"]),
    "name of no form": ({"name": "a b/c"}, "name", ["'a b/c'", "pattern"]),
    "name with a line end": ({"name": "tiny\n"}, "name", ["pattern"]),
    "long name": ({"name": "n" * 101}, "name", ["100"]),
    "registered name": ({"promote": {"register_as": "a/b"}}, "promote.register_as", ["'a/b'", "pattern"]),
    "opset too high": ({"opset": OPSET_MAX + 1}, "opset", ["24", "23"]),
    "opset too low": ({"opset": OPSET_MIN - 1}, "opset", ["12", "13"]),
    "opset no number": ({"opset": "high"}, "opset", ["'high'", "whole number", "auto"]),
    "size 0": ({"inputs": {"x": {"shape": ["batch", 0]}}}, "inputs.x.shape", ["size 0 must be at least 1", "name"]),
    "size -1": ({"inputs": {"x": {"shape": [-1, 3]}}}, "inputs.x.shape", ["size -1 must be at least 1"]),
    "size of YAML's yes": ({"inputs": {"x": {"shape": [True, 3]}}}, "inputs.x.shape", ["True is neither a size"]),
    "size with a point": ({"inputs": {"x": {"shape": [1.5]}}}, "inputs.x.shape", ["1.5 is neither a size"]),
    "size null": ({"inputs": {"x": {"shape": [None]}}}, "inputs.x.shape", ["None is neither a size"]),
    "dim of no form": ({"inputs": {"x": {"shape": ["2n"]}}}, "inputs.x.shape", ["'2n' is no name of a dim"]),
    "dim with a line end": ({"inputs": {"x": {"shape": ["n\n"]}}}, "inputs.x.shape", ["is no name of a dim"]),
    "shape no list": ({"inputs": {"x": {"shape": 3}}}, "inputs.x.shape", ["3", "must be a list"]),
    "no shape": ({"inputs": {"x": {}}}, "inputs.x.shape", ["is required"]),
    "tensor no mapping": ({"inputs": {"x": 5}}, "inputs.x", ["5", "must be a mapping"]),
    "range descending": ({"inputs": {"x": {"shape": [1], "range": [3, 1]}}}, "inputs.x.range", ["[3, 1]", "low below"]),
    "range empty": ({"inputs": {"x": {"shape": [1], "range": [3, 3]}}}, "inputs.x.range", ["low below high"]),
    "range infinite": ({"inputs": {"x": {"shape": [1], "range": [0, float("inf")]}}}, "inputs.x.range.1", ["finite"]),
    "no inputs": ({"inputs": {}}, "inputs", ["is required"]),
    "loader and path": (
        {"source": {"framework": "torch", "loader": "a.py:b", "path": "m"}},
        "source",
        ["exactly one of 'loader' and 'path'"],
    ),
    "neither loader nor path": ({"source": {"framework": "torch"}}, "source", ["exactly one of"]),
    "sklearn with a path": ({"source": {"framework": "sklearn", "path": "m.pkl"}}, "source", ["path", "'loader'"]),
    "onnx with a loader": ({"source": {"framework": "onnx", "loader": "a.py:b"}}, "source", ["loader", "'path'"]),
    "no setting of it": (
        {"source": {"framework": "sklearn", "loader": "a.py:b", "exporter": "dynamo"}},
        "source",
        ["exporter: is no setting of sklearn", "torch"],
    ),
    "state_dict without a loader": (
        {"source": {"framework": "torch", "path": "m.pt", "state_dict": "w.pt"}},
        "source",
        ["state_dict", "loader"],
    ),
    "nchw of no input": (
        {"source": {"framework": "keras", "path": "m.keras", "nchw": ["imag"]}, "inputs": {"image": {"shape": [1]}}},
        "source.nchw",
        ["'imag'", "image"],
    ),
    "opset above the runtime": ({"opset": 22, "max_runtime": "onnxruntime==1.20"}, "opset", ["22", "1.20", "21"]),
    "runtime unknown": ({"max_runtime": "tensorrt==10"}, "max_runtime", ["tensorrt", "onnxruntime"]),
    "runtime too old": ({"max_runtime": "onnxruntime==1.2"}, "max_runtime", ["1.2", "1.13"]),
    "no variant": ({"variants": []}, "variants", ["names no variant"]),
    "variants no list": ({"variants": 5}, "variants", ["5", "must be a list"]),
    "a variant twice": ({"variants": ["fp32", "fp32"]}, "variants", ["'fp32' is there twice", "name"]),
    "required no variant": ({"require": ["fp61"]}, "require", ["'fp61' is no variant", "Choices: fp32"]),
    "int8-static without data": ({"variants": ["int8-static"]}, "variants", ["'int8-static'", "data.calibration"]),
    "metric without data": ({"metric": {"fn": "a.py:b"}}, "metric", ["data.evaluation"]),
    "max_drop below 0": ({"data": DATA, "metric": {"fn": "a.py:b", "max_drop": -1}}, "metric.max_drop", ["-1"]),
    "max_drop NaN": ({"data": DATA, "metric": {"fn": "a.py:b", "max_drop": float("nan")}}, "metric.max_drop", ["nan"]),
    "min NaN": ({"data": DATA, "metric": {"fn": "a.py:b", "min": float("nan")}}, "metric.min", ["nan", "finite"]),
    "gate infinite": (
        {"variants": [{"recipe": "fp16", "gate": {"max_rel": float("inf")}}]},
        "variants.0.gate.max_rel",
        ["inf", "finite"],
    ),
    "gate cosine above 1": (
        {"variants": [{"recipe": "fp16", "gate": {"min_cosine": 1.1}}]},
        "variants.0.gate.min_cosine",
        ["1.1", "less than or equal to 1"],
    ),
    "unknown images key": ({"data": {"images": {"siz": 3}}}, "data.images.siz", ["did you mean 'size'?"]),
    "unknown text key": ({"data": {"text": {"colum": "a"}}}, "data.text.colum", ["did you mean 'column'?"]),
    "image of one side": (
        {"data": {"calibration": "p", "images": {"size": [8]}}},
        "data.images.size.1",
        ["is required"],
    ),
    "image of size 0": ({"data": {"calibration": "p", "images": {"size": [8, 0]}}}, "data.images.size.1", ["0", "1"]),
    "resize": ({"data": {"images": {"resize": "squash"}}}, "data.images.resize", ["crop, pad, stretch"]),
    "mode": ({"data": {"images": {"mode": "rbg"}}}, "data.images.mode", ["did you mean 'rgb'?"]),
    "std of 0": ({"data": {"images": {"std": [0.5, 0, 0.5]}}}, "data.images.std.1", ["0", "greater than 0"]),
    "mean NaN": ({"data": {"images": {"mean": [float("nan")]}}}, "data.images.mean.0", ["nan", "finite"]),
    "images of an npz": ({"data": {"calibration": "a.npz", "images": {}}}, "data", ["images: applies to a folder"]),
    "images of a callable": ({"data": DATA | {"images": {}}}, "data", ["images: applies to a folder of images alone"]),
    "text without a tokenizer": (
        {"data": {"calibration": "a.csv", "text": {}}},
        "data.text.tokenizer",
        ["is required"],
    ),
    "csv without text": ({"data": {"calibration": "a.CSV"}}, "data", ["calibration: 'a.CSV' needs the key text"]),
    "text of a folder": (
        {"data": {"calibration": "a", "text": WORDLIST}},
        "data",
        ["text: applies to a .csv or .parquet"],
    ),
    "text of no length": (
        {"data": {"text": WORDLIST | {"max_length": 0}}},
        "data.text.max_length",
        ["0", "equal to 1"],
    ),
    "padding": ({"data": {"text": WORDLIST | {"padding": "longest"}}}, "data.text.padding", ["max_length, none"]),
    "part of a text": ({"data": {"text": WORDLIST | {"inputs": {"x": "idz"}}}}, "data.text.inputs.x", ["mean 'ids'?"]),
    "evaluation csv without labels": (
        {"data": {"evaluation": "a.parquet", "text": WORDLIST}},
        "data",
        ["text.label: is required"],
    ),
    "evaluation npy": ({"data": {"evaluation": "a.npy"}}, "data", ["evaluation: an .npy holds no labels", ".npz"]),
    "seed below 0": ({"data": {"seed": -1}}, "data.seed", ["-1", "greater than or equal to 0"]),
    "no samples": ({"data": {"samples": 0}}, "data.samples", ["0", "greater than or equal to 1"]),
    "dims of an unknown dim": ({"dims": {"bacth": [1, 2]}}, "dims", ["'bacth'", "did you mean 'batch'?"]),
    "one size": ({"dims": {"batch": [4]}}, "dims.batch", ["[4]", "two or more different sizes"]),
    "one size twice": ({"dims": {"batch": [4, 4]}}, "dims.batch", ["two or more different sizes"]),
    "size 0 of a dim": ({"dims": {"batch": [0, 4]}}, "dims.batch", ["at least 1"]),
    "outputs neither": ({"outputs": 5}, "outputs", ["5", "must be a mapping"]),
    "outputs of numbers": ({"outputs": [1, 2]}, "outputs.0", ["1", "string"]),
    "speed-up below 1": ({"promote": {"min_speedup": 0.5}}, "promote.min_speedup", ["0.5", "1"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_spec(name: str) -> None:
    changes, key, words = BAD[name]
    error = fault(**changes)
    assert f"spec: {error}".startswith((f"spec: {key}:", f"spec: spec: {key}:"))
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("key", ["version", "name", "source", "inputs"])
def test_what_is_required(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: is required"):
        parse(yaml.safe_dump({k: v for k, v in SOUND.items() if k != key}))


def test_an_unknown_key_comes_first_and_the_others_are_counted() -> None:
    error = fault(opset=99, inputz={})
    assert error.key == "inputz"
    assert error.fix == "1 more fault(s) after this one"


def test_a_list_for_a_key_that_may_be_a_mapping_is_one_fault() -> None:
    assert fault(outputs=[1]).fix == ""
    assert fault(outputs={"y": {"dtype": "float23", "shape": [1]}}).fix == ""


@pytest.mark.parametrize(
    "text",
    ["", "[", "just words", "- a\n- b", "3", "name: 2024-13-45", "0x_: 1", "{[a]: b}", "\x00", "a: !!python/object x"],
)
def test_what_is_no_mapping_or_no_yaml_is_an_input_error_with_the_files_name(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "here/spec.yaml")
    assert str(caught.value).startswith("here/spec.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["version: 1\nname: a\nname: b", "source: {framework: onnx, 'framework': torch}"])
def test_a_key_that_is_there_twice_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"not valid YAML: key '(name|framework)' is there twice .*line \d"):
        parse(text)


def test_yamls_merges_still_work() -> None:
    text = "inputs: {x: &x {shape: [1, 3]}, y: {<<: *x, dtype: int64}}\n"
    spec = parse(text + "version: 1\nname: n\nsource: {framework: onnx, path: m.onnx}")
    assert spec.inputs["y"] == Tensor(dtype="int64", shape=(1, 3))


def test_deep_nesting_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parse("[" * 500)


def test_no_tag_runs_code(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parse(f"name: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    assert not (tmp_path / "made").exists()


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_parses_or_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="ascii"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(Spec.model_fields)), JUNK)
def test_any_value_of_any_key_parses_or_is_one_line(key: str, value: object) -> None:
    try:
        parsed(**{key: value})
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017  either is right


# --- the round trip --------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
FILES = st.lists(WORDS, max_size=3).map(tuple)
SYMBOLS = ("batch", "n", "no", "height")  # `no` is a boolean in YAML
FINITE = st.floats(-1e9, 1e9)


def below(bounds: tuple[float, float]) -> bool:
    return bounds[0] < bounds[1]


TENSORS = st.builds(
    Tensor,
    dtype=st.sampled_from(["float32", "int64", "bool"]),
    shape=st.lists(st.integers(1, 1000) | st.sampled_from(SYMBOLS), max_size=4).map(tuple),
    range=st.none() | st.tuples(FINITE, FINITE).filter(below),
)
GATES = st.builds(
    Gate,
    max_rel=st.none() | st.floats(1e-9, 1.0),
    min_cosine=st.none() | st.floats(-1.0, 1.0),
    min_sqnr_db=st.none() | FINITE,
    min_argmax_agreement=st.none() | st.floats(0.0, 1.0),
)
VARIANTS = st.one_of(
    st.builds(Variant, recipe=st.sampled_from(["fp32", "fp16"]), name=NAMES, exclude=FILES, gate=GATES),
    st.builds(
        Variant, recipe=st.just("int8-dynamic"), name=NAMES, per_channel=st.booleans(), exclude=FILES, gate=GATES
    ),
    st.builds(
        Variant,
        recipe=st.just("int8-static"),
        name=NAMES,
        method=st.sampled_from(["minmax", "entropy", "percentile"]),
        per_channel=st.booleans(),
        exclude=FILES,
        gate=GATES,
    ),
)


@st.composite
def sound_specs(draw: st.DrawFn) -> Spec:
    inputs = draw(st.dictionaries(WORDS, TENSORS, min_size=1, max_size=3))
    used = sorted({d for tensor in inputs.values() for d in tensor.shape if isinstance(d, str)})
    variants = draw(st.lists(VARIANTS, min_size=1, max_size=3, unique_by=lambda v: v.label))
    return Spec(
        version=1,
        name=draw(NAMES),
        source=Source(framework="torch", loader=draw(WORDS), files=draw(FILES)),
        inputs=inputs,
        outputs=draw(st.lists(WORDS, max_size=3).map(tuple) | st.dictionaries(WORDS, TENSORS, max_size=3)),
        dims={d: (1, draw(st.integers(2, 64))) for d in used if draw(st.booleans())},
        opset=draw(st.integers(OPSET_MIN, OPSET_MAX)),
        nondeterministic=draw(st.booleans()),
        data=Data(calibration=draw(WORDS), evaluation=draw(WORDS), files=draw(FILES), samples=draw(st.integers(1, 9))),
        metric=draw(st.none() | st.builds(Metric, fn=WORDS, max_drop=st.floats(0, 1), min=st.none() | FINITE)),
        variants=tuple(variants),
        require=tuple(v.label for v in variants if draw(st.booleans())),
        promote=draw(
            st.none()
            | st.builds(Promote, objective=st.sampled_from(["latency", "size"]), register_as=st.none() | NAMES)
        ),
    )


@settings(max_examples=40)
@given(sound_specs())
def test_a_spec_survives_dump_yaml_and_parse(spec: Spec) -> None:
    assert parse(yaml.safe_dump(spec.model_dump(mode="json"), allow_unicode=True)) == spec
    assert parse(yaml.safe_dump(spec.model_dump(mode="json", exclude_defaults=True))) == spec


# --- the contract ----------------------------------------------------------------------------------------------------


def test_contract_keeps_the_order_and_gives_each_dim_its_sizes() -> None:
    spec = parse(
        """
        version: 1
        name: n
        source: {framework: torch, loader: a.py:b}
        inputs: {b: {shape: [batch, length]}, a: {shape: [batch]}}
        outputs: [z, y]
        dims: {length: [16, 32]}
        """
    )
    assert spec.contract == Contract(
        input_names=("b", "a"),
        inputs=spec.inputs,
        output_names=("z", "y"),
        outputs={},
        dims={"batch": specs.DEFAULT_SIZES, "length": (16, 32)},
        nondeterministic=False,
    )


def test_contract_of_described_outputs_holds_them() -> None:
    contract = parsed(outputs={"y": {"shape": ["batch", 2]}}).contract
    assert contract.output_names == ("y",)
    assert contract.outputs["y"].shape == ("batch", 2)


# --- files -----------------------------------------------------------------------------------------------------------


def test_load_names_the_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"spec: .*nowhere\.yaml.*no such file.*onnxmill init"):
        load(tmp_path / "nowhere.yaml")


def test_load_of_a_folder_and_of_bytes_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "spec.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "spec.yaml")


def test_load_reads_what_parse_reads(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SOUND))
    assert load(tmp_path / "spec.yaml") == parsed()


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        ("weights.pt", "/specs/mnist/weights.pt"),
        ("sub/../weights.pt", "/specs/mnist/weights.pt"),
        ("../shared/weights.pt", "/specs/shared/weights.pt"),
        ("/data/weights.pt", "/data/weights.pt"),
        ("${ONNXMILL_HOME}/weights.pt", "/mill/weights.pt"),
    ],
)
def test_paths_are_relative_to_the_spec(declared: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_HOME", "/mill")
    assert expand(declared, Path("/specs/mnist")) == Path(meant)


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNXMILL_HOME", "mill")
    assert specs.home() == Path.cwd() / "mill"


def test_without_a_setting_home_is_in_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNXMILL_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert specs.home().name == "onnxmill"
    assert specs.home().is_absolute()


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"recipe": "fp16", "method": "entropy"}, "method: is no setting of fp16"),
        ({"recipe": "int8-dynamic", "method": "entropy"}, "method: is no setting of int8-dynamic"),
        ({"recipe": "fp32", "per_channel": False}, "per_channel: is no setting of fp32"),
        ({"recipe": "int8-dynamic", "ranges": "t.json"}, "ranges: is no setting of int8-dynamic"),
        ({"recipe": "int8-static", "percentile": 99.9}, "percentile: is no setting of method minmax"),
        ({"recipe": "int8-static", "ranges": "t.json", "method": "mse"}, "method: mse finds no range where `ranges`"),
    ],
)
def test_a_setting_that_the_recipe_does_not_have_is_refused(variant: dict[str, object], words: str) -> None:
    text = yaml.safe_dump(
        {
            "version": 1,
            "name": "a",
            "source": {"framework": "torch", "loader": "model.py:load"},
            "inputs": {"x": {"shape": ["batch", 3]}},
            "variants": [variant],
        }
    )
    with pytest.raises(InputError, match=words):
        parse(text)


def test_the_methods_are_those_of_calibration() -> None:
    assert get_args(Method) == METHODS


def test_a_table_of_ranges_stands_for_calibration_samples() -> None:
    (variant,) = parsed(variants=[{"recipe": "int8-static", "ranges": "t.json"}]).variants
    assert variant.ranges == "t.json"
