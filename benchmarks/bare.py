"""What `onnxmill convert` asks of other libraries, as one plain script: the yardstick of `overhead.py`.

    python benchmarks/bare.py examples/mnist/spec.yaml FOLDER

The same calls in the same order and number, with the same settings and samples: the user's loader and data; torch on
every parity case and evaluation sample; export, onnxsim, fp16, dynamic and static quantization; ONNX Runtime on every
parity case and evaluation sample for each variant; the benchmark's warm-up and rounds, in turn with fp32; the runs,
models, numbers and the registered version in MLflow (SQLite and files under FOLDER). It knows only what these specs
need: a torch source that the dynamo exporter takes, and the recipes of this version.

Not the same, because it is what onnxmill adds: no Prefect; no child processes, so libraries are imported and the
weights read once; one thing at a time; samples stay in memory; no artifact store, no memo, no digests; graphs before
the variants are not checked and compared, nor is any model run twice to see that it repeats itself; an unstable
measurement is not repeated; what MLflow stored is not fetched back and compared; no decision and no report.

Prints as JSON: the seconds of each phase (imports are the rest of the process's time), and each variant's numbers,
by which `overhead.py` sees that both made the same models.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import onnxsim
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from onnxmill.calibration import samples as samples_file
from onnxmill.calibration.samples import Expected
from onnxmill.tasks import spec as specs
from onnxmill.tasks import track  # noqa: F401  it sets what MLflow reads when it is imported
from onnxmill.tasks.benchmark import Budget
from onnxmill.tasks.contract import open_session
from onnxmill.tasks.machine import threads
from onnxmill.tasks.metric import BATCH
from onnxmill.tasks.quantize.int8 import DYNAMIC_OPERATORS, METHODS
from onnxmill.tasks.reference import REAL_SAMPLES, parity_inputs
from onnxmill.tasks.spec import Spec, Variant
from onnxmill.tasks.targets import cpu
from onnxmill.tasks.track_names import flatten

from mlflow import onnx as mlflow_onnx  # isort: skip
from mlflow import MlflowClient, set_tracking_uri, start_run, log_metrics, log_params  # isort: skip
from mlflow.models import infer_signature  # isort: skip

Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]
Numbers = dict[str, float]


class Phases:
    """Seconds of each phase so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def convert(path: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Everything, top to bottom: the seconds of each phase, and each variant's numbers."""
    spec, phases = specs.load(path), Phases()
    user = UserCode(spec, path.parent, folder)
    with phases.phase("samples"):
        calibration = list(itertools.islice(user.call(spec.data.calibration), spec.data.samples))
        evaluation = list(user.call(spec.data.evaluation)) if spec.data.evaluation else []
    with phases.phase("reference"):
        torch.set_num_threads(threads())
        module = user.call(spec.source.loader).eval()
        cases = list(_parity_cases(spec, calibration, [inputs for inputs, _ in evaluation], folder))
        references = [predict(module, inputs) for inputs in cases]
    with phases.phase("source scores"):
        score = user.find(spec.metric.fn) if spec.metric else None
        if score:
            outputs = _source_outputs(module, [inputs for inputs, _ in evaluation])
            [_score(score, spec, o, label) for o, (_, label) in zip(outputs, evaluation, strict=True)]
    graph = folder / "fp32.onnx"
    with phases.phase("export"):
        export(spec, module, graph)
    with phases.phase("simplify"):
        simplified, _ = onnxsim.simplify(onnx.load(str(graph)))
        onnx.save(simplified, str(graph))
    models, numbers = {}, {}
    for variant in spec.variants:
        with phases.phase("quantize"):
            models[variant.label] = quantize(variant, graph, calibration, folder / f"{variant.label}.onnx")
    for label, model in models.items():
        with phases.phase("parity"):
            session = open_session(model)
            numbers[label] = {"size_bytes": model.stat().st_size, **parity(session, cases, references)}
        with phases.phase("evaluate"):
            numbers[label] |= evaluate(spec, session, evaluation, score) if score else {}
    for label, model in models.items():
        with phases.phase("benchmark"):
            numbers[label] |= measure(model, None if model == graph else graph, cases[0])
    log(spec, models, numbers, cases[0], folder, phases)
    return {"seconds": phases.seconds, "variants": numbers}


class UserCode:
    """The user's callables, from a folder that holds their sources and the files that the spec names for them."""

    def __init__(self, spec: Spec, folder: Path, work: Path) -> None:
        self.folder = work / "user"
        self.folder.mkdir()
        declared = [*spec.source.files, *spec.data.files, *(spec.metric.files if spec.metric else ())]
        for path in [*folder.glob("*.py"), *(specs.expand(name, folder) for name in declared)]:
            (self.folder / path.name).symlink_to(path)
        sys.path.insert(0, str(self.folder))

    def find(self, entry: str | None) -> Callable[..., Any]:
        file, _, attribute = (entry or "").partition(":")
        function: Callable[..., Any] = getattr(__import__(file.removesuffix(".py")), attribute)
        return function

    def call(self, entry: str | None) -> Any:
        return self.find(entry)()


def _parity_cases(spec: Spec, calibration: list[Arrays], evaluation: list[Arrays], folder: Path) -> Iterator[Arrays]:
    """onnxmill's parity inputs. It draws them from a folder of samples: one with as many as it looks at."""
    real = folder / "real"
    real.mkdir()
    expected = {name: Expected(tensor.dtype, tensor.shape) for name, tensor in spec.inputs.items()}
    samples_file.write("real", evaluation or calibration, expected, real, limit=REAL_SAMPLES, labelled=False)
    return (inputs for _, inputs in parity_inputs(spec.contract, real))


def predict(module: torch.nn.Module, inputs: Arrays) -> Array:
    with torch.inference_mode():
        output: Array = module(*(torch.from_numpy(array) for array in inputs.values())).numpy()
    return output


def _source_outputs(module: torch.nn.Module, evaluation: list[Arrays]) -> list[Array]:
    """The module on all samples, `BATCH` at once; each sample's output with a batch axis of 1."""
    found: list[Array] = []
    for start in range(0, len(evaluation), BATCH):
        batch = evaluation[start : start + BATCH]
        output = predict(module, {name: np.concatenate([inputs[name] for inputs in batch]) for name in batch[0]})
        found += [output[i : i + 1] for i in range(len(batch))]
    return found


def _score(function: Callable[..., Any], spec: Spec, output: Array, label: object) -> float:
    return float(function({next(iter(spec.contract.output_names)): output}, label))


def export(spec: Spec, module: torch.nn.Module, path: Path) -> None:
    contract = spec.contract
    sizes = {dim: max(2, *sizes) for dim, sizes in contract.dims.items()}
    symbols = {dim: torch.export.Dim(dim) for dim in contract.dims}
    shapes = [contract.inputs[name].shape for name in contract.input_names]
    program = torch.onnx.export(
        module,
        tuple(torch.randn([sizes[d] if isinstance(d, str) else d for d in shape]) for shape in shapes),
        dynamo=True,
        opset_version=contract.opset,
        dynamic_shapes=tuple({a: symbols[d] for a, d in enumerate(shape) if isinstance(d, str)} for shape in shapes),
        input_names=list(contract.input_names),
        output_names=list(contract.output_names),
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    def __init__(self, samples: list[Arrays]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> Arrays | None:
        return next(self.samples, None)


def quantize(variant: Variant, graph: Path, calibration: list[Arrays], path: Path) -> Path:
    """The variant's model at `path`; fp32 is the graph itself."""
    match variant.recipe:
        case "fp32":
            return graph
        case "fp16":
            half = OnnxModel(convert_float_to_float16(onnx.load(str(graph)), keep_io_types=True))
            half.topological_sort()
            onnx.save(half.model, str(path))
        case "int8-dynamic":
            quantize_dynamic(
                graph,
                path,
                op_types_to_quantize=DYNAMIC_OPERATORS,
                per_channel=variant.per_channel,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True},
            )
        case "int8-static":
            quantize_static(
                graph,
                path,
                Reader(calibration),
                quant_format=QuantFormat.QDQ,
                per_channel=variant.per_channel,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=METHODS[variant.method],
            )
    return path


def parity(session: onnxruntime.InferenceSession, cases: list[Arrays], references: list[Array]) -> Numbers:
    outputs = [session.run(None, inputs)[0] for inputs in cases]
    return {"max_abs": max(float(np.abs(o - r).max()) for o, r in zip(outputs, references, strict=True))}


def evaluate(
    spec: Spec,
    session: onnxruntime.InferenceSession,
    evaluation: list[tuple[Arrays, object]],
    score: Callable[..., Any],
) -> Numbers:
    raw = [(session.run(None, inputs)[0], label) for inputs, label in evaluation]
    return {"metric": float(np.mean([_score(score, spec, output, label) for output, label in raw]))}


def measure(model: Path, baseline: Path | None, feed: Arrays) -> Numbers:
    """The benchmark's warm-up and rounds, in turn with the baseline where there is one."""
    budget, sides = Budget(), []
    for path in [model, *([baseline] if baseline else [])]:
        session = onnxruntime.InferenceSession(str(path), cpu.options(threads()), providers=["CPUExecutionProvider"])
        sides.append(cpu.Session(session, feed, 0.0))
        sides[-1].warm_up(budget.warm_up_seconds)
    rounds: list[list[list[float]]] = [[] for _ in sides]
    for _ in range(budget.rounds):
        for side, latencies in reversed(list(zip(sides, rounds, strict=True))):
            latencies.append(side.measure(budget.seconds_per_round, budget.runs_min).latencies_ms)
    p50, p95, p99 = (float(q) for q in np.percentile(np.concatenate(rounds[0]), [50, 95, 99]))
    return {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99}


def log(
    spec: Spec, models: dict[str, Path], numbers: dict[str, Numbers], example: Arrays, folder: Path, phases: Phases
) -> None:
    """A run for the conversion, one a variant with its model and numbers; the fastest one registered where asked."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with phases.phase("MLflow database"):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    addresses = {}
    with phases.phase("log"):
        set_tracking_uri(uri)
        experiment = client.create_experiment(spec.name, (folder / "artifacts").as_uri())
        with start_run(experiment_id=experiment, run_name=spec.name):
            log_params(flatten(spec.model_dump(mode="json", exclude={"variants"})))
            for variant in spec.variants:
                with start_run(experiment_id=experiment, run_name=variant.label, nested=True):
                    proto = onnx.load(str(models[variant.label]))
                    output = open_session(models[variant.label]).run(None, example)[0]
                    logged = mlflow_onnx.log_model(
                        proto,
                        name=variant.label,
                        signature=infer_signature(example, output),
                        input_example=example,
                        pip_requirements=[f"{n}=={version(n)}" for n in ("mlflow", "numpy", "onnx", "onnxruntime")],
                        onnx_execution_providers=["CPUExecutionProvider"],
                        save_as_external_data=False,
                    )
                    addresses[variant.label] = logged.model_uri
                    log_metrics(numbers[variant.label])
                    log_params(flatten(variant.model_dump(mode="json")))
    if spec.promote:
        with phases.phase("promote"):
            best = min(numbers, key=lambda label: numbers[label]["p50_ms"])
            name = spec.promote.register_as or f"{spec.name}-onnx"
            client.create_registered_model(name)
            made = client.create_model_version(name, addresses[best])
            client.set_registered_model_alias(name, "champion", made.version)


def main() -> None:
    path, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        print(json.dumps(convert(path, Path(work))))


if __name__ == "__main__":
    main()
