"""`calibrate`: convert's own steps, parts that make the same whole, and what stops it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from onnxmill.calibration import tables
from onnxmill.calibration.histogram import Histogram
from onnxmill.calibration.methods import METHODS
from onnxmill.calibration.methods_scheme import Range
from onnxmill.calibration.observer import Observer
from onnxmill.calibration.statistics import FILE, Statistics
from onnxmill.tasks import calibration_parts, calibration_rows, calibration_run, conversion
from onnxmill.tasks.artifact import Artifact
from onnxmill.tasks.calibration_report import OUTLIER, CalibrationReport, TensorRow, next_step
from onnxmill.tasks.calibration_run import Asked
from onnxmill.tasks.calibration_summary import Seen, chosen_variant
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.spec import parse
from tests import calibrating

Values = npt.NDArray[np.float32]
SPEC = """
version: 1
name: three
source: {framework: onnx, path: net.onnx}
data: {calibration: data.py:calibration}
variants: [fp32, int8-static, {recipe: int8-static, name: cut, method: percentile, percentile: 99.9, exclude: [a]}]
"""


@dataclass(frozen=True)
class Place:
    """A home and a spec: one machine."""

    home: Path
    spec: Path


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def enter(patch: pytest.MonkeyPatch, place: Place) -> None:
    patch.setenv("ONNXMILL_HOME", str(place.home))
    patch.setenv(ROOTS_SETTING, str(place.spec.parent))


def run(place: Place, want: Asked, out: Path) -> tuple[CalibrationReport, list[str]]:
    out.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    return calibration_run.calibrate(place.spec, want, out, said.append), said


def observed(place: Place, want: Asked) -> Seen:
    return calibration_run.observe(place.spec, want, lambda what: None)


def artifacts(seen: Seen) -> list[Artifact]:
    """Of each pass."""
    assert seen.calibration
    return [done.files for _, done in seen.calibration.observed]


# --- one pass --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch) -> tuple[Place, CalibrationReport]:
    folder = tmp_path_factory.mktemp("whole")
    place = Place(folder / "home", calibrating.write(folder / "spec", variants=calibrating.TWO_PASSES))
    enter(environment, place)
    return place, run(place, Asked(table="onnxruntime"), folder / "out")[0]


@pytest.mark.integration
def test_a_tensor_with_an_outlier_is_found(whole: tuple[Place, CalibrationReport]) -> None:
    place, report = whole
    out = place.home.parent / "out"
    assert CalibrationReport.model_validate_json((out / "calibration.json").read_bytes()) == report
    assert report.exit_code == 0
    assert report.samples == calibrating.SAMPLES
    rows = {row.name: row for row in report.tensors}
    assert list(rows) == ["x", "hidden", "y"]  # `first` takes Relu's range; the second pass alone observes y
    assert report.methods[0].variants == ("half", "int8-static")
    values = calibrating.rows()
    assert (rows["x"].low, rows["x"].high) == (values.min(), calibrating.EXTREME)
    assert (rows["hidden"].made_by, rows["hidden"].taken_by) == ("Relu", ("MatMul",))
    assert (rows["x"].made_by, rows["y"].taken_by) == ("input", ("output",))
    assert rows["hidden"].high_sample == rows["hidden"].extreme_sample == calibrating.BAD
    assert rows["hidden"].values == values.size
    marked = {row.name for row in report.tensors if row.outlier_ratio >= OUTLIER}
    assert marked == {"x", "hidden"}
    assert (
        ": 2 have outliers; the worst is hidden: its range is 13.8× that of 99 % of its values, by sample "
        f"{calibrating.BAD}" in report.sentence
    )
    assert "with minmax outliers take most of the range of 2 tensors" in next_step(report)[0]


@pytest.mark.integration
def test_the_table_is_of_the_specs_method(whole: tuple[Place, CalibrationReport]) -> None:
    place, report = whole
    assert report.table == "calibration_cache.json"
    found = tables.read(place.home.parent / "out" / report.table)
    minmax = {row.name: Range(row.ranges["minmax"].low, row.ranges["minmax"].high) for row in report.tensors}
    # of the first variant, which does not quantize y; what takes another's range is in the table too
    assert found == {"x": minmax["x"], "hidden": minmax["hidden"], "first": minmax["hidden"]}


@pytest.mark.integration
def test_convert_finds_it_done(whole: tuple[Place, CalibrationReport], environment: pytest.MonkeyPatch) -> None:
    place, _ = whole
    enter(environment, place)
    job = conversion.prepare(place.spec)
    samples = conversion.samples(job)
    reference = conversion.reference(job, samples)
    job = conversion.completed(job, reference)
    exported = conversion.export(job, reference)
    pinned = conversion.pin_opset(job, exported, reference)
    job = conversion.at_opset(job, pinned)
    simplified = conversion.simplified(job, pinned, reference)
    calibration = conversion.calibrate(job, simplified, reference, samples)
    done = [*samples.rows, *reference.rows, exported.row, pinned.row, simplified.row, *calibration.rows]
    assert [row.step for row in done if not row.cached] == []
    again, _ = run(place, Asked(), place.home.parent / "again")
    assert [row.step for row in again.steps if not row.cached] == []
    assert {row.step for row in calibration.rows} <= {row.step for row in again.steps}


@pytest.mark.integration
def test_another_method_and_form_cost_no_pass(
    whole: tuple[Place, CalibrationReport], environment: pytest.MonkeyPatch
) -> None:
    place, first = whole
    enter(environment, place)
    out = place.home.parent / "mse"
    report, _ = run(place, Asked(method="mse", table="tensorrt"), out)
    assert [row.step for row in report.steps if not row.cached] == []
    assert (report.chosen, report.tensors) == ("mse", first.tensors)
    found = tables.read(out / "calibration.cache")
    assert {(one.low, one.high) for one in found.values()} == {(-one.high, one.high) for one in found.values()}


# --- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Three parts, made in a home of their own."""

    place: Place
    folders: tuple[Path, ...]
    seen: Seen

    def merge(self, *folders: Path) -> None:
        assert self.seen.calibration
        assert self.seen.samples.calibration
        prepared, samples = self.seen.calibration.prepared.files, self.seen.samples.calibration.files
        excluded = conversion.exclusions(self.seen.job.spec)
        calibration_parts.merge(folders, prepared, samples, excluded, conversion.store())

    def changed(self, out: Path, **keys: object) -> Path:
        """A copy of the second part with other words in its manifest."""
        shutil.copytree(self.folders[1], out)
        manifest = json.loads((out / calibration_parts.MANIFEST).read_bytes())
        (out / calibration_parts.MANIFEST).write_text(json.dumps({**manifest, **keys}))
        return out


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch) -> Parts:
    folder = tmp_path_factory.mktemp("parts")
    place = Place(folder / "home", calibrating.write(folder / "spec", variants=calibrating.TWO_PASSES))
    enter(environment, place)
    folders = tuple(folder / f"part{number}" for number in (1, 2, 3))
    for number, out in enumerate(folders, start=1):
        report, _ = run(place, Asked(shard=(number, 3)), out)
        assert report.shard == (number, 3)
    return Parts(place, folders, observed(place, Asked(shard=(1, 3))))


@pytest.mark.integration
def test_merged_parts_are_what_one_pass_gives(
    whole: tuple[Place, CalibrationReport], parts: Parts, environment: pytest.MonkeyPatch
) -> None:
    enter(environment, whole[0])
    once = artifacts(observed(whole[0], Asked()))
    enter(environment, parts.place)
    third, first, second = parts.folders[2], parts.folders[0], parts.folders[1]
    merged = observed(parts.place, Asked(merge=(third, first, second)))
    assert artifacts(merged) == once  # the same digests: bit for bit
    assert len(once) == 2
    report, said = run(parts.place, Asked(), parts.place.home.parent / "out")
    assert "calibrate: cached" in said  # under the key of the whole
    assert report.tensors == whole[1].tensors


@pytest.mark.integration
def test_a_part_says_what_comes_next(parts: Parts) -> None:
    report = CalibrationReport.model_validate_json((parts.folders[0] / "calibration.json").read_bytes())
    assert report.sentence.startswith("part 1 of 3: 3 tensors on 13 samples")
    assert report.findings == ()  # a part may be small
    assert next_step(report)[1].endswith("--merge DIR --merge DIR …")


@pytest.mark.integration
def test_parts_that_do_not_make_a_whole(parts: Parts, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    enter(environment, parts.place)
    one, two, three = parts.folders
    other = parts.changed(tmp_path / "other", prepared="0" * 64)
    cases = {
        (one, three): r"--merge: has no part 2 of 3\. make it with `--shard 2/3 --out DIR`",
        (one,): r"has no part 2, 3 of 3",
        (one, two, three, two): rf"'{two}': is part 2 of 3, as is {two}",
        (one, other, three): rf"'{other}': is of other graph \(000000000000, here \w+\)\. make the part again",
        (one, parts.changed(tmp_path / "data", samples="1" * 64), three): r"is of other samples",
        (one, parts.changed(tmp_path / "four", of=4), three): r"is part 2 of 4, but .* is one of 3",
        (one, parts.changed(tmp_path / "v", tools={}), three): r"was made with onnxruntime None, here it is \d",
        (one, parts.changed(tmp_path / "p", passes=[]), three): r"has no pass that leaves \['last'\] in float",
        (one, parts.changed(tmp_path / "x", number="two"), three): r"is not as `calibrate --shard` writes it: .*number",
        (one, tmp_path, three): r"holds no part of a calibration: calibration-part.json cannot be read",
    }
    for folders, words in cases.items():
        with pytest.raises(InputError, match=words):
            parts.merge(*folders)


@pytest.mark.integration
def test_a_part_on_another_cpu_is_not_taken(parts: Parts, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    enter(environment, parts.place)
    manifest = json.loads((parts.folders[1] / calibration_parts.MANIFEST).read_bytes())
    other = parts.changed(tmp_path / "cpu", tools={**manifest["tools"], "cpu": "avx"})
    with pytest.raises(InputError, match="was made with another kind of CPU"):
        parts.merge(parts.folders[0], other, parts.folders[2])


@pytest.mark.integration
def test_a_file_that_was_changed_is_not_taken(parts: Parts, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    enter(environment, parts.place)
    other = parts.changed(tmp_path / "other")
    shutil.copyfile(parts.folders[0] / FILE, other / FILE)
    with pytest.raises(InputError, match="is not the file that the part was written with"):
        parts.merge(parts.folders[0], other, parts.folders[2])


@pytest.mark.integration
def test_more_parts_than_samples(parts: Parts, environment: pytest.MonkeyPatch) -> None:
    enter(environment, parts.place)
    with pytest.raises(InputError, match=r"--shard: '1/41': there are 40 samples"):
        observed(parts.place, Asked(shard=(1, 41)))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/1", "1", "1/", "/3", "1/0", "-1/3", "a/b", "1/3/5", " 1/3", "²/3"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match=r"--shard: .*must be NUMBER/OF, as 2/3"):
        calibration_parts.shard(text)


def test_shard() -> None:
    assert calibration_parts.shard("2/3") == (2, 3)
    assert calibration_parts.shard("1/2") == (1, 2)


# --- what stops it ---------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        (calibrating.OVERFLOWS, "QNT007", f"sample {calibrating.BAD}: 1 of 1024 values are not finite"),
        (calibrating.QUIET, "QNT001", "0 quantizable nodes"),
        (calibrating.RANDOM, "CON009", "two runs of one session disagree"),
    ],
)
def test_refusals(model: str, code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path / "home", calibrating.write(tmp_path / "spec", model=model))
    enter(monkeypatch, place)
    report, _ = run(place, Asked(), tmp_path / "out")
    assert report.exit_code == 3
    assert code in [found.code for found in report.findings]
    assert words in report.sentence
    assert report.sentence.startswith("refused: ")
    assert report.tensors == ()
    assert (tmp_path / "out" / "calibration.html").is_file()


@pytest.mark.integration
def test_few_samples_and_no_static_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path / "home", calibrating.write(tmp_path / "spec", variants=("fp32",)))
    np.save(place.spec.parent / "rows.npy", calibrating.rows()[:5])
    enter(monkeypatch, place)
    report, _ = run(place, Asked(), tmp_path / "out")
    assert (report.exit_code, report.samples, report.chosen) == (0, 5, "minmax")
    assert [found.code for found in report.findings] == ["QNT004"]


def test_no_calibration_samples(tmp_path: Path) -> None:
    place = Place(tmp_path / "home", calibrating.write(tmp_path / "spec", calibration=False, variants=("fp32",)))
    with pytest.raises(InputError, match=r"data\.calibration: is not in the spec.*give a callable or a path"):
        observed(place, Asked())
    assert not place.home.exists()


def test_options_that_contradict_each_other() -> None:
    here = (Path("a"),)
    cases = {
        "--method: 'mze': no such method. did you mean 'mse'": lambda: calibration_run.asked(
            "mze", None, None, (), fresh=False, out=False
        ),
        "--table: 'trt': no such kind": lambda: calibration_run.asked(None, "trt", None, (), fresh=False, out=False),
        "--shard: '1/2': makes a part": lambda: calibration_run.asked(None, None, "1/2", here, fresh=False, out=True),
        "--table: 'tensorrt': a part has no table": lambda: calibration_run.asked(
            None, "tensorrt", "1/2", (), fresh=False, out=True
        ),
        "--shard: '1/2': needs --out": lambda: calibration_run.asked(None, None, "1/2", (), fresh=False, out=False),
        "--fresh: would not take the parts": lambda: calibration_run.asked(
            None, None, None, here, fresh=True, out=False
        ),
    }
    for words, ask in cases.items():
        with pytest.raises(InputError) as refused:
            ask()
        assert words in str(refused.value)


# --- the rows --------------------------------------------------------------------------------------------------------


def test_the_chosen_variant() -> None:
    spec = parse(SPEC)
    assert chosen_variant(spec, None).label == "int8-static"
    assert chosen_variant(spec, "percentile") == spec.variants[2]
    other = chosen_variant(spec, "entropy")
    assert (other.method, other.exclude) == ("entropy", ())
    assert chosen_variant(parse(SPEC.split("variants")[0] + "variants: [fp32]"), "mse").method == "mse"


def of(values: Values) -> Histogram:
    observer = Observer()
    observer.add(values)
    return observer.histogram()


def test_clipped_counts_the_values_outside() -> None:
    values = np.random.default_rng(5).normal(size=50_000).astype(np.float32)
    histogram = of(values)
    for low, high in ((-1.0, 2.0), (-0.5, 0.25), (-3.0, 0.0)):
        outside = float(((values < low) | (values > high)).mean())
        assert calibration_rows.clipped(histogram, Range(low, high)) == pytest.approx(outside, abs=5e-4)
    assert calibration_rows.clipped(histogram, Range(histogram.low, histogram.high)) == 0
    assert calibration_rows.clipped(of(np.array([0, 0, 4], np.float32)), Range(0.0, 1.0)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-3.0], [-1e-30, 1e30], [-0.5, 7.9], [-2048.0, 2047.0]])
def test_bars_hold_every_value(values: list[float]) -> None:
    histogram = of(np.array(values, np.float32))
    bars = calibration_rows.bars(histogram)
    assert sum(bars.counts) == len(values)
    assert 1 <= len(bars.counts) <= calibration_rows.BARS
    assert bars.low <= min(0.0, *values)
    assert max(values) <= bars.low + bars.width * len(bars.counts)


def rows_of(arrays: dict[str, Values]) -> tuple[TensorRow, ...]:
    """The rows of tensors with these values, all in one sample, of a graph that does not know them."""
    histograms = {name: of(values) for name, values in arrays.items()}
    extremes = {name: np.array([[v.min(), v.max()]], np.float32) for name, v in arrays.items()}
    seen = Statistics(histograms, extremes, np.array([0]))
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in arrays]
    return calibration_rows.tensor_rows(seen, onnx.helper.make_graph([], "g", inputs, []), 99.999)


def test_the_sentence_names_the_worst() -> None:
    values = np.random.default_rng(3).uniform(0, 1, 40_000).astype(np.float32)
    rows = rows_of({"calm": values, "wild": np.append(values, np.float32(9.9))})
    assert [row.name for row in rows if row.outlier_ratio >= OUTLIER] == ["wild"]
    text = calibration_rows.sentence(rows, 1, (1, 1))
    assert text == (
        "2 tensors on 1 samples: 1 has outliers; the worst is wild: its range is 10.0× that of 99 % of its values, "
        "by sample 0"
    )
    methods = calibration_rows.method_rows(rows, 99.999, {"minmax": ["int8-static"]})
    assert [row.method for row in methods] == list(METHODS)
    assert (methods[0].kept_least, methods[0].clipped, methods[0].variants) == (1, 0, ("int8-static",))
    assert methods[2].kept_least_tensor == "wild"
