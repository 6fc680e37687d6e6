"""A calibration's page and its terminal table: whole in themselves, escaped, repeatable, and fast for many tensors."""

import io
import re
import time

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from rich.console import Console

from onnxmill.calibration.methods import METHODS, Method
from onnxmill.calibration.observer import Observer
from onnxmill.calibration.statistics import Statistics
from onnxmill.tasks import calibration_rows
from onnxmill.tasks.calibration_html import HEIGHT, WIDTH, html, mark, picture, share
from onnxmill.tasks.calibration_report import CalibrationDigests, CalibrationReport, TensorRow, next_step
from onnxmill.tasks.calibration_text import ROWS, render
from onnxmill.tasks.findings import finding
from tests.test_report_html import Page

Values = npt.NDArray[np.float32]
HOSTILE = '/layer.0/<script>alert("x")</script>/' + "a_very_long_name_of_a_tensor" * 5


def rows_of(arrays: dict[str, Values]) -> tuple[TensorRow, ...]:
    """The rows of tensors with these values, a third in each of three samples."""
    histograms, extremes = {}, {}
    for name, values in arrays.items():
        observer = Observer()
        parts = [observer.add(part) for part in np.array_split(values, 3)]
        histograms[name], extremes[name] = observer.histogram(), np.array(parts, np.float32)
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in arrays]
    seen = Statistics(histograms, extremes, np.arange(3))
    return calibration_rows.tensor_rows(seen, onnx.helper.make_graph([], "g", inputs, []), 99.999)


def report_of(rows: tuple[TensorRow, ...], chosen: Method = "minmax") -> CalibrationReport:
    return CalibrationReport(
        name="tiny",
        created_at="2026-01-01T00:00:00Z",
        sentence=calibration_rows.sentence(rows, 3, (1, 1)) if rows else "refused: QNT007",
        spec="spec.yaml",
        shard=(1, 1),
        samples=3,
        chosen=chosen,
        table=None,
        versions={"onnx": "1"},
        digests=CalibrationDigests(prepared="aa", samples="bb"),
        steps=(),
        findings=(),
        methods=calibration_rows.method_rows(rows, 99.999, {"minmax": ["int8-static"]}) if rows else (),
        tensors=rows,
    )


@pytest.fixture(scope="module")
def report() -> CalibrationReport:
    """Three tensors: one even, one with an outlier in its last third, one of zeros with a hostile name."""
    random = np.random.default_rng(7)
    even = random.uniform(-1, 1, 30_000).astype(np.float32)
    wild = np.append(random.normal(size=30_000), 70).astype(np.float32)
    return report_of(rows_of({"even": even, HOSTILE: np.zeros(9, np.float32), "wild": wild}))


def printed(report: CalibrationReport, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(render(report))
    return shown.get()


def test_page_shows_every_tensor_with_its_ranges(report: CalibrationReport) -> None:
    page = Page(html(report))
    assert page.open == []
    assert page.tags.count("svg") == len(report.tensors)
    assert page.tags.count("line") == len(report.tensors) * len(METHODS) * 2
    for text in (report.sentence, *next_step(report), HOSTILE, "in sample 2", *METHODS, "aa", "bb"):
        assert text.split("`")[0] in page.text
    assert page.text.index("wild") < page.text.index("even")  # the worst first
    assert "script" not in page.tags


def test_page_needs_nothing_else(report: CalibrationReport) -> None:
    text = html(report)
    page = Page(text)
    targets = re.findall(r'<article id="(\w+)"', text)
    assert page.addresses == [f"#{target}" for target in targets]
    assert len(set(targets)) == len(report.tensors)
    assert "url(" not in text
    assert "http" not in text
    assert html(report) == text


def test_every_picture_says_what_it_shows(report: CalibrationReport) -> None:
    labels = re.findall(r'<svg [^>]*role="img" aria-label="([^"]+)"', html(report))
    assert len(labels) == len(report.tensors)
    assert re.match(r"Histogram of wild: −\S+ to 70; minmax −\S+ to 70, moving-average ", labels[0])


def test_picture_is_drawn_to_scale() -> None:
    (row,) = rows_of({"x": np.array([-1, *[0.5] * 99, 3], np.float32)})
    drawn = picture(row, "minmax")
    ends = {line.method: [other.x for other in drawn.lines if other.method == line.method] for line in drawn.lines}
    assert ends["minmax"] == [0, WIDTH]
    assert drawn.zero == WIDTH / 4
    assert drawn.cut == ()  # minmax cuts nothing off
    points = re.findall(r"V([\d.]+)H([\d.]+)", drawn.path)
    assert drawn.path.startswith(f"M0,{HEIGHT}V")  # the first bar begins below what is shown
    assert len(points) == len(row.histogram.counts)
    tallest = [float(x) for y, x in points if float(y) == 0]
    assert len(tallest) == 1
    assert tallest[0] == pytest.approx(WIDTH * 1.5 / 4, abs=WIDTH / len(points))  # the bar that holds 0.5
    low = float(points[0][0])
    assert 80 < low < HEIGHT  # one value of 101 is seen
    assert low == float(points[-1][0])


def test_what_the_chosen_method_cuts_is_shaded() -> None:
    (row,) = rows_of({"x": np.array([-4, *np.linspace(-1, 1, 400_000), 8], np.float32)})
    kept = row.ranges["percentile"]
    assert kept.high < 8
    (low, start), (end, high) = picture(row, "percentile").cut
    assert (low, high) == (0, WIDTH)
    assert start == pytest.approx(WIDTH * (kept.low + 4) / 12, abs=0.1)
    assert end == pytest.approx(WIDTH * (kept.high + 4) / 12, abs=0.1)


def test_terminal_names_each_tensor(report: CalibrationReport) -> None:
    text = printed(report)
    assert " ".join(printed(report).split()).startswith(report.sentence)
    for name in ("even", "wild", HOSTILE[:15]):  # a long one goes on in the lines below
        assert f"\n{name}" in text


def test_terminal_marks_outliers_without_colour(report: CalibrationReport) -> None:
    lines = {line.split()[0]: line for line in printed(report).splitlines() if line.strip()}
    assert "!! " in lines["wild"]
    assert "!" not in lines["even"]
    assert all(len(line) <= 100 for line in printed(report, width=100).splitlines())


def test_a_refusal_has_its_findings_and_no_table(report: CalibrationReport) -> None:
    why = finding("QNT007", "tensor e", "sample 3: 1 of 4 values are not finite")
    refused = report_of(()).model_copy(update={"findings": (why,)})
    assert refused.exit_code == 3
    for text in (Page(html(refused)).text, " ".join(printed(refused).split())):
        assert "sample 3: 1 of 4 values are not finite" in text
        assert why.fix in text
        assert "onnxmill calibrate spec.yaml" in text
    assert "<table" not in html(refused)


def test_many_tensors_stay_fast_and_small() -> None:
    random = np.random.default_rng(11)
    few = rows_of({f"{i}": random.normal(size=3000).astype(np.float32) for i in range(20)})
    rows = tuple(few[i % 20].model_copy(update={"name": f"/encoder/layer.{i}/add"}) for i in range(300))
    many = report_of(rows, "entropy")
    started = time.monotonic()
    text = html(many)
    assert time.monotonic() - started < 5
    assert len(text.encode()) < 3_000_000
    assert text.count("<svg") == 300
    shown = printed(many)
    assert f"{ROWS} of 300 tensors" in shown
    assert sum(line.startswith("/encoder") for line in shown.splitlines()) == ROWS


def test_share() -> None:
    values = {0: "0 %", 1: "100 %", 0.5: "50 %", 0.9999: "99.9 %", 0.996: "99.6 %", 0.0123: "1 %", 1e-5: "0.001 %"}
    assert {value: share(value) for value in values} == values
    assert share(1e-9) == "< 0.0001 %"


def test_marks_stand_for_bits() -> None:
    assert [mark(ratio) for ratio in (1, 5.9, 6, 11.9, 12, 100)] == ["", "", "some", "some", "strong", "strong"]
