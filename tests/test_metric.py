"""The metric gate: a user's function on each sample, and the judgement of two lists of scores."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.calibration import samples
from onnxmill.tasks import metric
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.findings import refused
from onnxmill.tasks.metric import ModelOutputsSettings, ScoreSettings, SourceOutputsSettings, judge
from onnxmill.tasks.spec import Metric
from tests import graphs

Scores = npt.NDArray[np.float64]


def asked(*, max_drop: float = 0.01, floor: float | None = None) -> Metric:
    return Metric(fn="data.py:correct", max_drop=max_drop, min=floor)


def ones(count: int, wrong: int = 0) -> Scores:
    scores = np.ones(count)
    scores[:wrong] = 0.0
    return scores


# --- the judgement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "variant", "limits", "expected"),
    [
        (ones(1000, 10), ones(1000, 10), asked(), []),
        (ones(1000, 10), ones(1000, 0), asked(), []),  # better
        (ones(4000, 40), ones(4000, 40), asked(max_drop=0.0), []),
        (ones(1000), ones(1000, 11), asked(), ["GATE006"]),
        (ones(1000), ones(1000, 10), asked(), ["GATE009"]),  # at the limit: its interval reaches beyond
        (ones(1000, 50), ones(1000, 50), asked(floor=0.96), ["GATE005"]),
        (ones(1000, 40), ones(1000, 40), asked(floor=0.96), []),
        (ones(1000, 0), ones(1000, 90), asked(floor=0.96), ["GATE005", "GATE006"]),
        (ones(100), ones(100, 1), asked(max_drop=0.02), ["GATE009"]),  # too few to tell 0.01 from 0.02
        (ones(10), ones(10), asked(), ["GATE009"]),  # equal, on samples without a spread
        (ones(1), ones(1), asked(), ["GATE009"]),
    ],
)
def test_judgement(source: Scores, variant: Scores, limits: Metric, expected: list[str]) -> None:
    row, findings = judge(limits, source, variant)
    assert [f.code for f in findings] == expected
    assert refused(findings) is bool({"GATE005", "GATE006"} & set(expected))
    assert (row.source, row.variant, row.samples) == (source.mean(), variant.mean(), len(source))
    for finding in findings:
        assert finding.where == "metric"
        assert finding.measured is not None
        assert f"{finding.measured:.4f}" in finding.message


SCORES = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=30, max_size=60)


@given(SCORES, st.floats(0, 0.5))
def test_a_drop_above_the_limit_never_passes_and_one_below_is_never_refused(
    pairs: list[tuple[float, float]], limit: float
) -> None:
    source, variant = np.array(pairs).T
    row, findings = judge(asked(max_drop=limit), source, variant)
    assert refused(findings) is bool(np.mean(source - variant) > limit)
    low, high = row.drop_interval
    assert low <= high
    assert ("GATE009" in [f.code for f in findings]) is (not refused(findings) and high > limit)


@given(SCORES)
def test_the_judgement_repeats_and_knows_the_direction(pairs: list[tuple[float, float]]) -> None:
    source, variant = np.array(pairs).T
    once, again, swapped = (judge(asked(), *both)[0] for both in ((source, variant),) * 2 + ((variant, source),))
    assert once == again
    assert swapped.source == once.variant
    assert swapped.drop_interval[0] == pytest.approx(-once.drop_interval[1], abs=0.1)


def test_scores_that_are_not_finite_do_not_pass() -> None:
    with pytest.raises(ValueError, match="finite"):
        judge(asked(), ones(50), np.full(50, np.nan))


# --- scoring ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ready(tmp_path: Path) -> graphs.Ready:
    return graphs.ready(tmp_path, graphs.GEMM)


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    inputs = [{"x": np.full((1, 4), i, np.float32)} for i in range(5)]
    return graphs.write_samples(tmp_path / "evaluation", inputs, labels=[16 * i + 1 for i in range(5)])


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    with graphs.user_code(tmp_path / "code") as folder:
        yield folder


def scored(ready: graphs.Ready, evaluation: Path, code: Path, body: str) -> float:
    outputs = ready.out("outputs")
    metric.model_outputs(ModelOutputsSettings(contract=ready.contract), ready.model, evaluation, outputs)
    (code / "scoring.py").write_text(f"def score(outputs, label):\n    {body}\n")
    return metric.score(ScoreSettings(fn="scoring.py:score"), code, outputs, evaluation, ready.out("scores"))


def test_each_sample_is_scored_with_its_own_outputs_and_label(
    ready: graphs.Ready, evaluation: Path, code: Path
) -> None:
    # 16 i + 1 is the first output for inputs of i: sample 3 alone has another score
    body = "return 10.0 if label == 49 else float(outputs['y'][0, 0] == label and type(label) is int)"
    assert scored(ready, evaluation, code, body) == pytest.approx(14 / 5)
    assert metric.read_scores(ready.folder / "scores/out").tolist() == [1, 1, 1, 10, 1]


@pytest.mark.parametrize("body", ["return True", "import numpy as np; return np.float32(1)", "return 1"])
def test_any_number_is_a_score(ready: graphs.Ready, evaluation: Path, code: Path, body: str) -> None:
    assert scored(ready, evaluation, code, body) == 1.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 'good'", "must return a number for each sample; it returned a str"),
        ("return '0.9'", "it returned a str"),
        ("return None", "it returned a NoneType"),
        ("return outputs", "it returned a dict"),
        ("return outputs['y'][0]", "it returned a ndarray"),
        ("return float('nan')", r"must return a finite number; sample 0 gave nan"),
        ("return 1 / (label - 33)", r"scoring sample 2 with it raised ZeroDivisionError at scoring\.py:2"),
        ("return 1.0 if label < 30 else float('inf')", "sample 2 gave inf"),
    ],
)
def test_what_is_no_number_is_refused(
    ready: graphs.Ready, evaluation: Path, code: Path, body: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        scored(ready, evaluation, code, body)
    assert raised.value.key == "metric.fn"


def test_a_function_that_is_not_there_is_named(ready: graphs.Ready, evaluation: Path, code: Path) -> None:
    (code / "scoring.py").write_text("def scores(outputs, label): ...\n")
    with pytest.raises(InputError, match="has no 'score'; did you mean 'scores'"):
        metric.score(ScoreSettings(fn="scoring.py:score"), code, ready.model, evaluation, ready.out())


def test_outputs_of_another_number_of_samples_are_not_paired(ready: graphs.Ready, evaluation: Path, code: Path) -> None:
    outputs = ready.out("outputs")
    metric.model_outputs(ModelOutputsSettings(contract=ready.contract), ready.model, evaluation, outputs)
    (code / "scoring.py").write_text("def score(outputs, label): return 1\n")
    fewer = graphs.write_samples(ready.folder / "fewer", [{"x": np.zeros((1, 4), np.float32)}], labels=[1])
    with pytest.raises(ValueError, match="argument"):
        metric.score(ScoreSettings(fn="scoring.py:score"), code, outputs, fewer, ready.out("scores"))


# --- outputs ---------------------------------------------------------------------------------------------------------


def all_outputs(folder: Path) -> list[dict[str, list[object]]]:
    groups = samples.read_groups(folder / metric.OUTPUTS)
    return [{name: array.tolist() for name, array in arrays.items()} for _, arrays in groups]


def source_outputs(ready: graphs.Ready, evaluation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ready.model)
    out, settings = ready.out("source"), SourceOutputsSettings(source=graphs.SOURCE, contract=ready.contract)
    count = metric.source_outputs(settings, ready.model, evaluation, out)
    assert count == len(samples.hashes(evaluation))
    return out


def test_the_source_in_batches_gives_what_the_model_gives_one_by_one(
    ready: graphs.Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [{"x": np.full((1, 4), i, np.float32)} for i in range(metric.BATCH + 3)]
    evaluation = graphs.write_samples(tmp_path / "many", inputs, labels=list(range(len(inputs))))
    out = ready.out("model-outputs")
    metric.model_outputs(ModelOutputsSettings(contract=ready.contract), ready.model, evaluation, out)
    source = source_outputs(ready, evaluation, monkeypatch)
    assert all_outputs(source) == all_outputs(out)
    assert all_outputs(source)[5] == {"y": [[16.0 * 5 + 1, -20.0 * 5 - 1]]}


def test_outputs_without_a_batch_axis_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = graphs.ready(
        tmp_path / "graph",
        """
        agraph (float[1, 2, 3] x) => (float total, float[3, 2] turned) <int64[2] s = {3, 2}> {
          total = ReduceSum<keepdims = 0>(x)
          turned = Reshape(x, s)
        }
        """,
    )
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    evaluation = graphs.write_samples(tmp_path / "evaluation", [{"x": x}, {"x": x + 1}], labels=[0, 1])
    source = source_outputs(ready, evaluation, monkeypatch)
    assert all_outputs(source)[1] == {"total": 21.0, "turned": [[1, 2], [3, 4], [5, 6]]}


def test_scores_are_plain_json(ready: graphs.Ready, evaluation: Path, code: Path) -> None:
    scored(ready, evaluation, code, "return label")
    assert json.loads((ready.folder / "scores/out" / metric.SCORES).read_text()) == [1, 17, 33, 49, 65]
