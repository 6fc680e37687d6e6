"""The report's plots as SVG text. The same report gives the same bytes; no display and no pyplot needed."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from onnxmill.tasks import units
from onnxmill.tasks.parity import SQNR_EXACT_DB, Parity
from onnxmill.tasks.report import Report, VariantRow

COLOURS = {"passed": "#2563eb", "refused": "#dc2626", "failed": "#dc2626", "skipped": "#9ca3af"}
INK, MUTED, GRID = "#111827", "#6b7280", "#e5e7eb"
WIDTH_IN, ROW_IN = 3.5, 0.31
LOG_FROM = 20.0
"""A latency axis is logarithmic from this ratio of slowest to fastest: else the fast can't be told apart."""
SQNR_SHOWN_DB = 160.0
"""Where bars end: float32's own rounding is at about 150 dB, and an exact output would be off any scale."""


@dataclass(frozen=True)
class Plot:
    """A picture; `note` is its key, and `text` says in words what it shows, for those who can't see it."""

    title: str
    note: str
    text: str
    svg: str


def plots(report: Report) -> tuple[Plot, ...]:
    """Those plots for which the report holds numbers."""
    drawn = (_latency(report), _sizes(report), _sqnr(report))
    return tuple(plot for group in drawn for plot in group)


def _latency(report: Report) -> list[Plot]:
    measured = [
        (v, m.target, m.p50_ms, m.p95_ms or m.p50_ms, m.p99_ms or m.p50_ms)
        for v in report.variants
        for m in v.results
        if m.p50_ms
    ]
    if not measured:
        return []
    many_targets = len({target for _, target, *_ in measured}) > 1
    labels = [f"{v.name}, {target}" if many_targets else v.name for v, target, *_ in measured]
    figure, axes = _canvas(labels)
    for y, (variant, _, p50, p95, p99) in enumerate(measured):
        colour = COLOURS[variant.status]
        axes.plot([p50, p99], [y, y], color=colour, linewidth=2, alpha=0.45, solid_capstyle="round")
        axes.plot([p95], [y], marker="|", color=colour, markersize=9, markeredgewidth=1.6)
        axes.plot([p50], [y], marker="o", color=colour, markersize=7)
        axes.annotate(units.milliseconds(p50), (p50, y), (0, 7), textcoords="offset points", ha="center",
                      fontsize=8, color=INK)  # fmt: skip
    highest, lowest = max(row[4] for row in measured), min(row[2] for row in measured)
    if highest / lowest > LOG_FROM:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.8, highest * 1.8)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, highest * 1.12)
    text = ", ".join(f"{label} {units.milliseconds(row[2])} ms" for label, row in zip(labels, measured, strict=True))
    return [Plot("Latency, ms", "dot p50, tick p95, line to p99", f"p50: {text}", _svg(figure))]


@dataclass(frozen=True)
class Bar:
    """One bar, what is written behind it, and the limit that it does not reach."""

    name: str
    status: str
    value: float
    text: str
    limit: float | None = None


def _sizes(report: Report) -> list[Plot]:
    bars = [
        Bar(v.name, v.status, v.artifact.size_bytes, units.size(v.artifact.size_bytes))
        for v in report.variants
        if v.artifact
    ]
    return [_bars("Size", "weights and graph, as stored", bars)] if bars else []


def _sqnr(report: Report) -> list[Plot]:
    bars = [_sqnr_bar(v, v.parity) for v in report.variants if v.parity and v.parity.outputs]
    note = "of the worst output; dashed: a limit not met"
    return [_bars("Signal to error ratio (SQNR), dB", note, bars)] if bars else []


def _sqnr_bar(variant: VariantRow, parity: Parity) -> Bar:
    """The worst output's; where one is not finite there is no bar, and the text says so."""
    values = [output.sqnr_db for output in parity.outputs]
    worst = None if None in values else min(value for value in values if value is not None)
    limits = [f.limit for f in variant.findings if f.code == "GATE003" and f.limit is not None]
    if worst is None:
        text = "not finite"
    else:
        text = "exact" if worst >= SQNR_EXACT_DB else f"{units.number(round(worst, 1))} dB"
    shown = max(-SQNR_SHOWN_DB, min(worst or 0.0, SQNR_SHOWN_DB))
    return Bar(variant.name, variant.status, shown, text, max(limits, default=None))


def _bars(title: str, note: str, bars: Sequence[Bar]) -> Plot:
    """Horizontal bars from zero, without a scale: the number stands behind each."""
    figure, axes = _canvas([bar.name for bar in bars])
    axes.barh(range(len(bars)), [b.value for b in bars], height=0.56, color=[COLOURS[b.status] for b in bars])
    ends = [max(bar.value, bar.limit or 0.0, 0.0) for bar in bars]
    for y, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        if bar.limit is not None:
            axes.plot([bar.limit] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=1.4, linestyle=(0, (2, 1.5)))
        axes.annotate(bar.text, (end, y), (5, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_xlim(1.2 * min(0.0, *(bar.value for bar in bars)), 1.3 * max(ends) or 1.0)
    axes.set_xticks([])
    return Plot(title, note, ", ".join(f"{bar.name} {bar.text}" for bar in bars), _svg(figure))


def _canvas(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one labelled line for each entry, the first on top."""
    figure = Figure(figsize=(WIDTH_IN, 0.4 + ROW_IN * len(labels)), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    short = [label if len(label) <= 22 else label[:21] + "…" for label in labels]
    # "$" would start a formula
    axes.set_yticks(range(len(labels)), [label.replace("$", r"\$") for label in short], fontsize=9, color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.75)
    axes.tick_params(axis="both", length=0)
    axes.tick_params(axis="x", labelsize=8, labelcolor=MUTED)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The figure as SVG without date, and with ids that depend on its content alone."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "onnxmill", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
