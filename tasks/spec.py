"""The spec: what a user asks for, as pydantic models. An unknown key or choice is an error with close matches."""

import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from onnxmill.tasks import runtimes
from onnxmill.tasks.errors import InputError, close_match

Framework = Literal["torch", "keras", "tensorflow", "tflite", "sklearn", "jax", "onnx"]
Dtype = Literal[
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]
RecipeName = Literal["fp32", "fp16", "int8-dynamic", "int8-static"]
Method = Literal["minmax", "moving-average", "percentile", "entropy", "mse"]
"""The methods of calibration/."""
Dim = int | str

Constant = bool | int | float | str

OPSET_MIN, OPSET_MAX = 13, 23
"""The pins that are offered: below 13 the QDQ format has no per-channel form; above 23 converters are unproven."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Strict(BaseModel):
    """Base of every part of a spec: frozen, and no unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def dim_name(name: str, axis: int) -> str:
    """A name that a spec allows for a dim: the file's own as far as that goes."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    if plain:
        return f"dim_{plain}" if plain[0].isdigit() else plain
    return "batch" if axis == 0 else f"dim_{axis}"


class Tensor(Strict):
    """One input or output. `shape` mixes sizes and names of dims; `range` bounds random integers: [lo, hi)."""

    dtype: Dtype = Field("float32", description="element type")
    shape: tuple[Dim, ...] = Field(description="sizes; a name makes a dynamic dim, e.g. [batch, 3, 224, 224]")
    range: tuple[float, float] | None = Field(None, description="bounds of made-up values, for integers [lo, hi)")

    @field_validator("shape", mode="before")
    @classmethod
    def _sizes_and_names(cls, shape: object) -> object:
        for dim in shape if isinstance(shape, list | tuple) else ():
            if isinstance(dim, str):
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", dim):
                    raise ValueError(f"'{dim}' is no name of a dim: letters, digits and _ only")
            elif not isinstance(dim, int) or isinstance(dim, bool):  # YAML reads yes and on as true
                raise ValueError(f"{dim!r} is neither a size (a whole number) nor the name of a dim")
            elif dim < 1:
                raise ValueError(f"size {dim} must be at least 1; give a dynamic dim a name, such as 'batch'")
        return shape

    @field_validator("range")
    @classmethod
    def _ascending(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds and not bounds[0] < bounds[1]:
            raise ValueError("must be [low, high] with low below high")
        return bounds


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Files = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


LOADED: dict[Framework, tuple[str, ...]] = {
    "torch": ("loader", "path"),
    "keras": ("loader", "path"),
    "tensorflow": ("loader", "path"),
    "tflite": ("path",),
    "sklearn": ("loader",),
    "jax": ("loader",),
    "onnx": ("path",),
}
"""How each framework's model can be given."""
OWN_SETTINGS: dict[str, tuple[Framework, ...]] = {
    "state_dict": ("torch",),
    "constants": ("torch",),
    "exporter": ("torch",),
    "signature": ("tensorflow", "tflite"),
    "nchw": ("keras", "tensorflow", "tflite"),
    "python": ("torch", "keras", "tensorflow", "tflite", "sklearn", "jax"),
    "reference": ("onnx",),
}
"""Settings of a source that only some frameworks have."""


class Source(Strict):
    """Where the trained model comes from."""

    framework: Framework = Field(description="what the model was trained with")
    loader: str | None = Field(None, description="file.py:callable beside the spec, or package.module:callable")
    path: str | None = Field(None, description="a model file (a SavedModel's folder), instead of a loader")
    files: Files = Field((), description="what the loader reads: weights, configuration")
    state_dict: str | None = Field(None, description="weights for the loader's module: .pt, .pth or .safetensors")
    constants: dict[str, Constant] = Field({}, description="fixed values of forward's parameters that are no tensors")
    exporter: Literal["auto", "dynamo", "torchscript"] = Field("auto", description="auto tries both, dynamo first")
    signature: str = Field("", description="signature of a SavedModel or TFLite file; by default serving_default")
    nchw: tuple[str, ...] = Field((), description="image inputs that the ONNX model takes as NCHW; the source: NHWC")
    python: str | None = Field(None, description="interpreter of another environment, in which the model's code runs")
    reference: str | None = Field(None, description="an .npz of inputs and outputs of the framework it came from")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.loader is None) == (self.path is None):
            raise ValueError("give exactly one of 'loader' and 'path'")
        given = "loader" if self.loader else "path"
        if given not in LOADED[self.framework]:
            raise ValueError(f"{given}: is nothing that {self.framework} has; give '{LOADED[self.framework][0]}'")
        for key, frameworks in OWN_SETTINGS.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.framework not in frameworks:
                raise ValueError(f"{key}: is no setting of {self.framework}; only of {', '.join(frameworks)}")
        if self.state_dict and not self.loader:
            raise ValueError("state_dict: needs a loader that returns the module which it is loaded into")
        return self


DataKind = Literal["npy", "npz", "requests", "images", "text"]
DATA_SUFFIXES: dict[str, DataKind] = {".npy": "npy", ".npz": "npz", ".csv": "text", ".parquet": "text"}
"""What a file of samples is, by its name; a folder holds images or requests."""


class Images(Strict):
    """How an image becomes the input: resized to `size`, then (pixel · scale - mean) / std."""

    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = Field(
        None, description="[height, width]; by default those of the input's shape"
    )
    resize: Literal["crop", "stretch", "pad"] = Field(
        "crop", description="crop: cover the size, cut what is over on both sides; pad: fit in, fill up with black"
    )
    layout: Literal["auto", "nchw", "nhwc"] = Field("auto", description="auto: the axis of channels in the shape says")
    mode: Literal["rgb", "bgr", "gray"] = Field("rgb", description="channels and their order")
    scale: float | None = Field(None, gt=0, description="factor of the pixels, 0 to 255; by default 1/255")
    mean: tuple[float, ...] = Field((), description="taken off after scale: a value for each channel")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field((), description="divided by: a value for each channel")


class Text(Strict):
    """How a row of a .csv or .parquet becomes token ids."""

    tokenizer: str = Field(description="a Hugging Face tokenizer.json")
    column: str = Field("text", description="the column that holds the text")
    pair: str | None = Field(None, description="the column of a second text")
    label: str | None = Field(None, description="the column of labels: numbers or texts")
    max_length: int = Field(128, ge=1, description="tokens at most, special ones included")
    padding: Literal["max_length", "none"] = Field("max_length", description="none: every sample has its own length")
    inputs: dict[str, Literal["ids", "attention_mask", "type_ids"]] = Field(
        {}, description="what each input takes; by default by the names input_ids, attention_mask, token_type_ids"
    )


class Data(Strict):
    """Real samples: of a callable, or of a path to .npy, .npz, .csv, .parquet, a folder of images or of requests.

    Callables give {input: array} with a batch axis of 1, those of evaluation ({input: array}, label).
    """

    calibration: str | None = Field(None, description="file.py:callable giving {input: array}, or a path")
    evaluation: str | None = Field(None, description="file.py:callable giving ({input: array}, label), or a path")
    files: Files = Field((), description="what the callables read; a path above needs none")
    samples: int = Field(256, ge=1, le=1_000_000, description="how many calibration samples at most")
    seed: int = Field(
        0, ge=0, description="which ones: of a path or a sequence, chosen by it; each class has its share"
    )
    images: Images | None = Field(None, description="of image folders; by default as its keys' defaults")
    text: Text | None = Field(None, description="of .csv and .parquet, which need it")

    @model_validator(mode="after")
    def _applies(self) -> Self:
        given = {key: text for key in ("calibration", "evaluation") if (text := getattr(self, key))}
        paths = {key: text for key, text in given.items() if not names_callable(text)}
        kinds = {key: DATA_SUFFIXES.get(Path(text).suffix.lower()) for key, text in paths.items()}
        for key, kind in kinds.items():
            if kind == "text" and not self.text:
                raise ValueError(f"{key}: '{paths[key]}' needs the key text, with its tokenizer and columns")
        if self.text and "text" not in kinds.values():
            raise ValueError("text: applies to a .csv or .parquet alone, and there is none")
        if self.images and None not in kinds.values():
            raise ValueError("images: applies to a folder of images alone, and there is none")
        if kinds.get("evaluation") == "npy":
            raise ValueError("evaluation: an .npy holds no labels; give an .npz with them under 'label'")
        if kinds.get("evaluation") == "text" and self.text and self.text.label is None:
            raise ValueError("text.label: is required, since evaluation needs labels")
        return self


def names_callable(text: str) -> bool:
    """Whether an entry of `data` is file.py:callable or package.module:callable; else it is a path."""
    origin, _, attribute = text.rpartition(":")
    return bool(origin) and attribute.isidentifier()


class Metric(Strict):
    """A user's score on the labelled evaluation data: fn(outputs, label) -> a number a sample, averaged."""

    fn: str = Field(description="file.py:callable (outputs, label) -> score of one sample, higher is better")
    max_drop: float = Field(0.01, ge=0, description="largest accepted drop against the source framework")
    min: float | None = Field(None, description="floor of a variant's own score")
    files: Files = Field((), description="what the function reads")


class Gate(Strict):
    """Limits of numeric parity; those not given come from the recipe's precision class."""

    max_rel: float | None = Field(None, gt=0, description="largest error, relative to the output's range")
    min_cosine: float | None = Field(None, ge=-1, le=1, description="lowest cosine similarity")
    min_sqnr_db: float | None = Field(None, description="lowest signal to quantization noise ratio, dB")
    min_argmax_agreement: float | None = Field(None, ge=0, le=1, description="lowest share of equal argmax")


class Variant(Strict):
    """One variant: a recipe, a name, its settings. A bare recipe name in `variants:` is the recipe's defaults."""

    recipe: RecipeName
    name: str = Field("", pattern=r"^$|" + NAME, description="by default the recipe's name")
    method: Method = Field("minmax", description="how activation ranges are found (int8-static)")
    percentile: float = Field(99.999, gt=50, le=100, description="share of values that method percentile keeps, in %")
    ranges: str | None = Field(None, description="a calibration table instead of samples: ONNX Runtime's, TensorRT's")
    per_channel: bool = Field(True, description="a weight scale for each output channel (int8)")
    exclude: tuple[str, ...] = Field((), description="names of nodes to keep in float")
    gate: Gate = Gate()

    @model_validator(mode="after")
    def _applies(self) -> Self:
        static: tuple[RecipeName, ...] = ("int8-static",)
        for key, recipes in (("method", static), ("ranges", static), ("per_channel", (*static, "int8-dynamic"))):
            if getattr(self, key) != type(self).model_fields[key].default and self.recipe not in recipes:
                raise ValueError(f"{key}: is no setting of {self.recipe}; only of {', '.join(recipes)}")
        if self.percentile != type(self).model_fields["percentile"].default and self.method != "percentile":
            raise ValueError(f"percentile: is no setting of method {self.method}; give `method: percentile` too")
        if self.ranges and self.method != type(self).model_fields["method"].default:
            raise ValueError(f"method: {self.method} finds no range where `ranges` gives them; take one of the two out")
        return self

    @property
    def label(self) -> str:
        return self.name or self.recipe


class Promote(Strict):
    """Promotion of the best proven variant in the MLflow registry."""

    objective: Literal["latency", "size"] = "latency"
    target: str = "cpu"
    register_as: str | None = Field(None, pattern=NAME, description="registered model; by default <name>-onnx")
    min_speedup: float | None = Field(None, ge=1, description="may only tighten the policy's")


def _variant(value: object) -> object:
    return {"recipe": value} if isinstance(value, str) else value


def _opset(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (whole and OPSET_MIN <= value <= OPSET_MAX):  # type: ignore[operator]  # it is an int
        raise ValueError(f"must be a whole number from {OPSET_MIN} to {OPSET_MAX}, or auto")
    return value


class Spec(Strict):
    """One spec = one graph. Only `version`, `name`, `source` and `inputs` are required."""

    version: Literal[1]
    name: str = Field(pattern=NAME, max_length=100)
    source: Source
    inputs: dict[str, Tensor] = Field({}, description="may be left out for an ONNX source")
    outputs: dict[str, Tensor] | tuple[str, ...] = Field((), description="names with dtype and shape, or just names")
    dims: dict[str, tuple[int, ...]] = Field({}, description="sizes each dynamic dim is proven at; the first is timed")
    opset: Annotated[int | Literal["auto"], BeforeValidator(_opset)] = Field(
        18, description=f"{OPSET_MIN} to {OPSET_MAX}; auto: the lowest that model, recipes and runtimes allow"
    )
    max_runtime: str | None = Field(None, description="oldest runtime that must read the models: onnxruntime==1.20")
    sidecars: Files = Field((), description="files that go with every model: tokenizer, labels, preprocessing")
    nondeterministic: bool = Field(False, description="two runs on one input may differ")
    data: Data = Data()
    metric: Metric | None = None
    variants: tuple[Annotated[Variant, BeforeValidator(_variant)], ...] = ()
    require: tuple[str, ...] = ()
    targets: tuple[Literal["cpu"], ...] = Field(("cpu",), min_length=1)
    promote: Promote | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_variants(cls, value: Any) -> Any:
        if isinstance(value, dict) and "variants" not in value:
            data = value.get("data")
            calibrated = isinstance(data, dict) and data.get("calibration")
            return {**value, "variants": ["fp32", "int8-static"] if calibrated else ["fp32"]}
        return value

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not self.inputs and self.source.framework != "onnx":
            raise ValueError("inputs: is required; give each input's dtype and shape")
        if self.max_runtime:
            try:
                highest = runtimes.reads(self.max_runtime).opset
            except InputError as error:
                raise ValueError(str(error)) from error
            if self.opset != "auto" and self.opset > highest:
                raise ValueError(f"opset: {self.opset} is above what {self.max_runtime} reads; pin {highest}, or auto")
        for name in self.source.nchw:
            if name not in self.inputs:
                raise ValueError(f"source.nchw: '{name}' is no input; {close_match(name, self.inputs)}")
        labels = [v.label for v in self.variants]
        if not labels:
            raise ValueError("variants: [] names no variant; give at least one, such as fp32")
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"variants: '{label}' is there twice; give each a `name:` of its own")
        for name in self.require:
            if name not in labels:
                raise ValueError(f"require: '{name}' is no variant of this spec; {close_match(name, labels)}")
        if self.promote and self.promote.target not in self.targets:
            raise ValueError(
                f"promote.target: '{self.promote.target}' is not measured; "
                f"{close_match(self.promote.target, self.targets)}"
            )
        for variant in self.variants:
            if variant.recipe == "int8-static" and not (self.data.calibration or variant.ranges):
                raise ValueError(f"variants: '{variant.label}' needs calibration samples; give `data.calibration`")
        if self.metric and not self.data.evaluation:
            raise ValueError("metric: needs labelled samples; give `data.evaluation`")
        symbols = {d for t in self.inputs.values() for d in t.shape if isinstance(d, str)}
        for dim, sizes in self.dims.items():
            if self.inputs and dim not in symbols:
                raise ValueError(f"dims: '{dim}' is in no input's shape; {close_match(dim, symbols)}")
            if len(set(sizes)) < 2 or min(sizes) < 1:
                raise ValueError(f"dims.{dim}: {list(sizes)} must be two or more different sizes, each at least 1")
        return self

    @property
    def contract(self) -> "Contract":
        outputs = self.outputs if isinstance(self.outputs, dict) else {}
        symbols = [d for t in self.inputs.values() for d in t.shape if isinstance(d, str)]
        dims = {d: self.dims.get(d, DEFAULT_SIZES) for d in symbols}
        return Contract(
            input_names=tuple(self.inputs),
            inputs=self.inputs,
            output_names=tuple(self.outputs),
            outputs=outputs,
            dims=dims,
            nondeterministic=self.nondeterministic,
        )


DEFAULT_SIZES = (1, 3)
"""Sizes that a dynamic dim without an entry in `dims` is proven at."""


class Contract(Strict):
    """What a model takes and gives, from the spec; completed by `reference` with what the source really gives.

    The names carry the order. `outputs` is empty, or holds every name; `dims` holds every dynamic dim.
    """

    input_names: tuple[str, ...]
    inputs: dict[str, Tensor]
    output_names: tuple[str, ...]
    outputs: dict[str, Tensor]
    dims: dict[str, tuple[int, ...]]
    nondeterministic: bool


def load(path: Path) -> Spec:
    """Read a spec file. Raises `InputError` that names the key, the value and what was expected."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError("spec", str(path), "no such file", "`onnxmill init MODEL` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("spec", str(path), f"cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, origin: str = "spec") -> Spec:
    """A spec from YAML text; `origin` names it in errors."""
    try:
        value = yaml.load(text, _Once)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number of impossible digits
        raise InputError(origin, None, f"is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise InputError(origin, None, "must be a mapping of keys, beginning with `version: 1`")
    try:
        return Spec.model_validate(value)
    except ValidationError as error:
        raise _explain(error, origin) from error


class _Once(yaml.SafeLoader):
    """Safe YAML in which no key is there twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _explain(error: ValidationError, origin: str) -> InputError:
    """The first fault of pydantic's list, in our words; how many more there are."""
    faults = [f for f in error.errors() if not _other_branch(f["loc"], f["input"])] or error.errors()
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "dict[", "tuple["))]
    key, value = ".".join(where) or origin, fault.get("input")
    context = fault.get("ctx", {})
    match fault["type"]:
        case "extra_forbidden":
            expected = f"unknown key; {close_match(where[-1], _keys_at(fault['loc'][:-1]))}"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
            expected = close_match(str(value), choices) if choices else f"must be {context['expected']}"
        case "missing":
            value, expected = None, "is required"
        case "value_error":
            value, expected = (
                (None if isinstance(value, dict) else value),
                str(context.get("error", fault["msg"])),
            )
        case "model_type" | "dict_type":
            expected = "must be a mapping of keys"
        case "tuple_type":
            expected = "must be a list"
        case _:
            expected = fault["msg"][0].lower() + fault["msg"][1:]
    more = f"{len(faults) - 1} more fault(s) after this one" if len(faults) > 1 else ""
    return InputError(key, value, expected, more)


def _other_branch(location: tuple[int | str, ...], value: object) -> bool:
    """Whether a fault is only that a list is no mapping, or another value no list, of a key that may be either."""
    branch = str(location[-1]) if location else ""
    return branch.startswith("dict[" if isinstance(value, list) else "tuple[")


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """The keys that the part of a spec at `location` (pydantic's `loc`) may hold."""
    model: type[BaseModel] = Spec
    parts: dict[str, type[BaseModel]] = {
        "source": Source, "data": Data, "metric": Metric, "promote": Promote, "variants": Variant,
        "gate": Gate, "inputs": Tensor, "outputs": Tensor, "images": Images, "text": Text,
    }  # fmt: skip
    for part in location:
        model = parts.get(str(part), model)
    return list(model.model_fields)


def expand(declared: str, base: Path) -> Path:
    """The path that a spec's file entry means: relative to the spec's folder, or under ${ONNXMILL_HOME}."""
    text = declared.replace("${ONNXMILL_HOME}", str(home()))
    return Path(os.path.normpath(base / text))


def home() -> Path:
    """Where onnxmill keeps its store and embedded databases: `ONNXMILL_HOME`, or the user's data directory."""
    from platformdirs import user_data_path

    return Path(os.environ.get("ONNXMILL_HOME") or user_data_path("onnxmill")).absolute()  # children run elsewhere
