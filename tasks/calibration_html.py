"""A calibration as one HTML page that needs nothing else: a histogram a tensor, with every method's range drawn in."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p

from onnxmill.calibration.methods import METHODS, Method
from onnxmill.tasks import page, units
from onnxmill.tasks.calibration_report import OUTLIER, STRONG, Bars, CalibrationReport, TensorRow, next_step

HEIGHT = 100
"""Of a picture, in the units of its SVG; its width is that of the range in the figure's place, 0 to `WIDTH`."""
WIDTH = 1000
STAGGER = 6
"""Each method's lines begin this much lower than those before, so that lines at one place are all seen."""


@dataclass(frozen=True)
class Line:
    """One end of a method's range."""

    method: Method
    x: float
    top: int


@dataclass(frozen=True)
class Picture:
    """A tensor's histogram: `path` of the bars, the lines, the place of zero, what the chosen method cuts off."""

    path: str
    lines: tuple[Line, ...]
    zero: float
    cut: tuple[tuple[float, float], ...]
    text: str


def html(report: CalibrationReport) -> str:
    """The page. What the report's texts hold is escaped; the same report gives the same bytes."""
    templates = page.environment()
    templates.filters.update(share=share, mark=mark)
    places = {row.name: index for index, row in enumerate(report.tensors, start=1)}
    advice, command = next_step(report)
    return templates.get_template("calibration.html").render(
        report=report,
        methods=METHODS,
        rows=[(places[row.name], row, picture(row, report.chosen)) for row in report.worst_first],
        advice=advice,
        command=command,
    )


def picture(row: TensorRow, chosen: Method) -> Picture:
    """A tensor's histogram over minmax's range, counts on a logarithmic scale."""
    whole = row.ranges["minmax"]

    def x(value: float) -> float:
        return round(WIDTH * min(max((value - whole.low) / (whole.high - whole.low), 0), 1), 1)

    lines = [
        Line(method, x(end), STAGGER * index)
        for index, method in enumerate(METHODS)
        for end in (row.ranges[method].low, row.ranges[method].high)
    ]
    kept = row.ranges[chosen]
    cut = [(0.0, x(kept.low)), (x(kept.high), float(WIDTH))]
    return Picture(
        path=_path(row.histogram, [x(row.histogram.low + i * row.histogram.width) for i in range(_edges(row))]),
        lines=tuple(lines),
        zero=x(0),
        cut=tuple((start, end) for start, end in cut if end > start),
        text=(
            f"Histogram of {row.name}: {units.number(row.low)} to {units.number(row.high)}; "
            + ", ".join(
                f"{method} {units.number(one.low)} to {units.number(one.high)}" for method, one in row.ranges.items()
            )
        ),
    )


def share(value: float) -> str:
    """A share (0 to 1) in per cent: 0 only where it is none, 100 only where it is all."""
    percent = 100 * value
    if percent in (0, 100):
        return f"{percent:.0f} %"
    if percent < 0.0001:
        return "< 0.0001 %"
    if percent >= 1:
        return f"{min(percent, 99.9):.1f} %" if percent >= 99.5 else f"{percent:.0f} %"
    return f"{percent:.2g} %"


def mark(ratio: float) -> str:
    """How a tensor with this outlier ratio is marked: "strong", "some", or not at all."""
    return "strong" if ratio >= STRONG else "some" if ratio >= OUTLIER else ""


def _edges(row: TensorRow) -> int:
    return len(row.histogram.counts) + 1


def _path(bars: Bars, edges: Sequence[float]) -> str:
    """The outline of the bars, from the base line and back to it. A bar's height is log(1 + its count)."""
    most = max(bars.counts)
    tops = [round(HEIGHT * (1 - log1p(count) / log1p(most)), 1) for count in bars.counts]
    steps = [f"V{top:g}H{edge:g}" for top, edge in zip(tops, edges[1:], strict=True)]
    return f"M{edges[0]:g},{HEIGHT}{''.join(steps)}V{HEIGHT}Z"
