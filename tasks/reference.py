"""The reference: the source framework's own outputs on the parity inputs. Every later stage is compared with it.

Parity inputs differ from the example that an exporter traces and from each other: real samples first, then made-up
values over the real ranges, at every size of every dynamic dim.
"""

import itertools
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array, Expected
from onnxmill.tasks import cases
from onnxmill.tasks.cases import Case, Kind
from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.export import TOOLS, Source, SourceSettings
from onnxmill.tasks.export.elsewhere import opened
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.spec import Contract, Framework, Tensor, dim_name
from onnxmill.tasks.step import Step

SEED = 20240607
REAL_CASES, RANDOM_CASES = 4, 2
"""Parity cases a size of the dynamic dims."""
ITSELF = "proven against itself only: no reference of the framework that it comes from was given"
REAL_SAMPLES = 64
"""Real samples that the real cases draw from."""


class ReferenceSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    source: SourceSettings
    contract: Contract


class Reference(BaseModel):
    """The contract, completed with the outputs that the source really gives; how many cases of each kind.

    `note` says what the outputs are of: what everything is proven against.
    """

    model_config = ConfigDict(frozen=True)

    contract: Contract
    real_cases: int
    random_cases: int
    note: str


def reference_step(framework: Framework) -> Step:
    return Step("reference", 2, "onnxmill.tasks.reference:compute", tools=TOOLS[framework], user_code="source")


def compute(
    settings: ReferenceSettings, source: Path, out: Path, real: Path | None = None, python: str = ""
) -> Reference:
    """Run the source on the parity inputs; `cases.npz` in `out` holds both. `real` is a folder of samples, `python`
    the interpreter in which the source's code runs ("" for this one).

    Raises `InputError` where the source does not take the inputs or does not give the outputs of the spec.
    """
    contract = settings.contract
    shapes: list[tuple[dict[str, int], dict[str, Array]]] = []
    counts = {"real": 0, "random": 0}
    given = _given(source / settings.source.reference, contract) if settings.source.reference else []

    def save(archive: zipfile.ZipFile, kind: Kind, inputs: dict[str, Array], raw: list[tuple[str, Array]]) -> None:
        outputs = named(contract, raw)
        if shapes and set(outputs) != set(shapes[0][1]):
            raise InputError("outputs", list(shapes[0][1]), f"the model gives {list(outputs)} on other inputs")
        shapes.append((_sizes(contract, inputs), outputs))
        cases.append(archive, len(shapes) - 1, Case(kind, inputs, outputs))
        counts[kind] += 1
        report_progress("reference", len(shapes))

    with (
        opened(settings.source, python) as model,
        zipfile.ZipFile(out / cases.FILE, "w", zipfile.ZIP_STORED) as archive,
    ):
        for inputs, raw in given:
            save(archive, "real", inputs, raw)
        for kind, inputs in parity_inputs(contract, real):
            save(archive, kind, inputs, _predict(model, inputs))
    names = tuple(shapes[0][1])
    for name in names:
        if not any(np.isfinite(outputs[name].astype(np.float64)).any() for _, outputs in shapes):
            raise InputError("source", None, f"gives no finite value for output '{name}'", "check the model's weights")
    outputs_seen = {name: _output(name, contract, [(s, o[name]) for s, o in shapes]) for name in names}
    complete = contract.model_copy(update={"output_names": names, "outputs": outputs_seen})
    note = f"proven against {settings.source.framework}"
    if settings.source.framework == "onnx":
        note = f"proven against {settings.source.reference}" if given else ITSELF
    return Reference(contract=complete, real_cases=counts["real"], random_cases=counts["random"], note=note)


def _predict(model: Source, inputs: dict[str, Array]) -> list[tuple[str, Array]]:
    try:
        return model.predict(inputs)
    except InputError:
        raise
    except Exception as error:  # the user's model: whatever it raises on inputs of the spec is the spec's fault
        if isinstance(error, StepError) and error.signal:
            raise  # another interpreter's process broke
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        kind = "" if isinstance(error, StepError) else f"{type(error).__name__}: "
        text = kind + " ".join(str(error).split())
        raise InputError("inputs", None, f"the model does not take them ({sizes}): {text}") from error


def _given(path: Path, contract: Contract) -> list[tuple[dict[str, Array], list[tuple[str, Array]]]]:
    """The cases of a user's file: entries `input/<name>` and `output/<name>`, or `<case>/input/<name>`, …

    Raises `InputError` for a file that is none, and for inputs that are not those of the contract.
    """
    key, fix = "source.reference", "save it by numpy.savez with input/<name> and output/<name> for every one"
    found: dict[str, dict[str, dict[str, Array]]] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for entry in file.files:
                case, _, rest = entry.rpartition("input/") if "input/" in entry else entry.rpartition("output/")
                role = "input" if "input/" in entry else "output"
                found.setdefault(case.rstrip("/"), {"input": {}, "output": {}})[role][rest] = file[entry]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(key, path.name, f"is no .npz of arrays: {error}", fix) from error
    if not found:
        raise InputError(key, path.name, "holds no case", fix)
    expected = {name: Expected(tensor.dtype, tensor.shape) for name, tensor in contract.inputs.items()}
    result = []
    for index, case in enumerate(found.values()):
        inputs = samples.check(key, f"sample {index}", case["input"], expected, any_batch=True)
        if not case["output"]:
            raise InputError(key, path.name, f"case {index} holds no output", fix)
        result.append((inputs, list(case["output"].items())))
    return result


# --- parity inputs ---------------------------------------------------------------------------------------------------


def parity_inputs(contract: Contract, real: Path | None) -> Iterator[tuple[Kind, dict[str, Array]]]:
    """For each size of the dynamic dims: real samples in batches, then made-up values."""
    pool = _pool(real)
    bounds = _bounds(contract, pool)
    uniform = len({tuple((n, s[n].shape) for n in contract.input_names) for s in pool}) == 1
    offset = seed = 0
    for sizes in _rounds(contract.dims):
        batch = _batch_size(contract, sizes)
        for _ in range(REAL_CASES if pool else 0):
            stacked = samples.stack(_real_batch(pool, offset, batch))
            offset = (offset + (batch if uniform else 1)) % len(pool)
            yield "real", {name: stacked[name] for name in contract.input_names}
        for _ in range(RANDOM_CASES):
            yield (
                "random",
                {n: _random(contract.inputs[n], sizes, bounds[n], SEED + seed, n) for n in contract.input_names},
            )
            seed += 1


def _rounds(dims: dict[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """Sizes to run at: the first of every dim; each dim's others alone, so that no dim passes for another; all last."""
    first = {dim: sizes[0] for dim, sizes in dims.items()}
    alone = [first | {dim: size} for dim, sizes in dims.items() for size in sizes[1:]]
    last = [{dim: sizes[-1] for dim, sizes in dims.items()}] if len(dims) > 1 else []
    return [first, *alone, *last]


def _pool(real: Path | None) -> list[dict[str, Array]]:
    """The first real samples, whatever their shapes."""
    return [sample.inputs for sample in itertools.islice(samples.read(real), REAL_SAMPLES)] if real else []


def _real_batch(pool: list[dict[str, Array]], start: int, batch: int) -> list[dict[str, Array]]:
    """`batch` samples from `start` on, in a circle: of the first one's shape, for they are stacked. Where too few have
    it, they are taken again."""
    rotated = pool[start:] + pool[:start]
    shapes = [{name: array.shape for name, array in inputs.items()} for inputs in rotated]
    alike = [inputs for inputs, shape in zip(rotated, shapes, strict=True) if shape == shapes[0]]
    return [alike[i % len(alike)] for i in range(batch)]


def _batch_size(contract: Contract, sizes: dict[str, int]) -> int:
    """The size of the batch axis: the dim that is first in every input; 1 where there is none."""
    first = {tensor.shape[0] if tensor.shape else 1 for tensor in contract.inputs.values()}
    dim = first.pop() if len(first) == 1 else 1
    return sizes[dim] if isinstance(dim, str) else 1


def _bounds(contract: Contract, pool: list[dict[str, Array]]) -> dict[str, tuple[float, float] | None]:
    bounds: dict[str, tuple[float, float] | None] = {}
    for name, tensor in contract.inputs.items():
        kind = np.dtype(tensor.dtype).kind
        if tensor.range or kind == "b":
            bounds[name] = tensor.range or (0, 2)
        elif pool:
            low = min(float(sample[name].min()) for sample in pool)
            high = max(float(sample[name].max()) for sample in pool)
            bounds[name] = (low, high if kind == "f" else high + 1)
        elif kind == "f":
            bounds[name] = None
        else:
            raise InputError(
                f"inputs.{name}.range",
                None,
                "integers need bounds of made-up values",
                "give range: [lo, hi], or data",
            )
    return bounds


def _random(want: Tensor, sizes: dict[str, int], bounds: tuple[float, float] | None, seed: int, name: str) -> Array:
    rng = np.random.default_rng([seed, *name.encode()])
    shape = [sizes[d] if isinstance(d, str) else d for d in want.shape]
    if bounds is None:
        return rng.standard_normal(shape).astype(want.dtype)
    if np.dtype(want.dtype).kind == "f":
        return rng.uniform(*bounds, shape).astype(want.dtype)
    return rng.integers(int(bounds[0]), int(bounds[1]), shape).astype(want.dtype)


# --- outputs ---------------------------------------------------------------------------------------------------------


def named(contract: Contract, raw: list[tuple[str, Array]]) -> dict[str, Array]:
    """The outputs under the contract's names, or under the source's own where the contract has none."""
    if not raw:
        raise InputError("outputs", None, "the model gives no output")
    names = list(contract.output_names) or [name or f"output_{i}" for i, (name, _) in enumerate(raw)]
    if len(names) != len(raw):
        raise InputError("outputs", names, f"the model gives {len(raw)} output(s), the spec names {len(names)}")
    clash = set(names) & set(contract.input_names)
    if clash or len(set(names)) != len(names):
        raise InputError("outputs", names, "names of inputs and outputs must all differ")
    by_name = dict(raw)
    if set(names) == set(by_name):  # the source has names of its own: order is the spec's
        return {name: by_name[name] for name in names}
    if set(names) & set(by_name):  # neither the source's names nor new ones for all: order would be a guess
        raise InputError("outputs", names, f"the model names its outputs {list(by_name)}", "use these names, or none")
    return {name: array for name, (_, array) in zip(names, raw, strict=True)}


def _sizes(contract: Contract, inputs: dict[str, Array]) -> dict[str, int]:
    return {
        dim: size
        for name, tensor in contract.inputs.items()
        for dim, size in zip(tensor.shape, inputs[name].shape, strict=True)
        if isinstance(dim, str)
    }


def _output(name: str, contract: Contract, seen: list[tuple[dict[str, int], Array]]) -> Tensor:
    """An output's dtype and shape from what was seen: a fixed size, or the dim that it always equals.

    Raises `InputError` where the spec says otherwise, and `StepError` where the number of axes changes.
    """
    ranks = {array.ndim for _, array in seen}
    if len(ranks) != 1:
        raise StepError("reference", f"output '{name}' has {sorted(ranks)} axes, depending on the input")
    declared = contract.outputs.get(name)
    dtype, rank = str(seen[0][1].dtype), ranks.pop()
    if declared and declared.dtype != dtype:
        raise InputError(f"outputs.{name}.dtype", declared.dtype, f"the model gives {dtype}")
    if declared and len(declared.shape) != rank:
        raise InputError(f"outputs.{name}.shape", list(declared.shape), f"the model gives {rank} axes")
    shape: list[int | str] = []
    for axis in range(rank):
        lengths = [array.shape[axis] for _, array in seen]
        equal = [dim for dim in contract.dims if all(s.get(dim) == n for (s, _), n in zip(seen, lengths, strict=True))]
        fixed = lengths[0] if len(set(lengths)) == 1 and lengths[0] else None
        want = declared.shape[axis] if declared else None
        if want is not None:
            if (want in contract.dims and want not in equal) or (isinstance(want, int) and want != fixed):
                given = equal[0] if equal else fixed or f"sizes {sorted(set(lengths))}"
                shown = list(declared.shape) if declared else None
                raise InputError(f"outputs.{name}.shape", shown, f"axis {axis} of the model is {given}")
            shape.append(want)
        else:
            shape.append(equal[0] if equal else fixed or dim_name(f"{name}_{axis}", axis))
    return Tensor.model_validate({"dtype": dtype, "shape": shape})
