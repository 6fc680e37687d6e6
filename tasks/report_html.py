"""The report as one HTML page that needs nothing else: no script, no address outside itself."""

import base64

from onnxmill.tasks import page, units
from onnxmill.tasks.parity import SQNR_EXACT_DB
from onnxmill.tasks.plots import Plot, plots
from onnxmill.tasks.report import Report
from onnxmill.tasks.report_rows import flagged, graph_notes, next_step, rows, serving

VERDICTS = {0: "passed", 1: "failed", 3: "refused"}


def html(report: Report) -> str:
    """The page. What the report's texts hold is escaped; the same report gives the same bytes."""
    templates = page.environment()
    templates.filters.update(ms=units.milliseconds, seconds=units.seconds, db=_decibels, data_uri=_data_uri)
    return templates.get_template("report.html").render(
        report=report,
        verdict=VERDICTS[report.exit_code],
        rows=rows(report),
        serving=serving(report),
        graph_notes=graph_notes(report),
        next_step=next_step(report),
        findings=[group for group in flagged(report) if group.findings],
        plots=plots(report),
        spent_s=sum(step.seconds for step in report.steps),
    )


def _decibels(value: float | None) -> str:
    if value is not None and value >= SQNR_EXACT_DB:
        return "exact"
    return units.NOTHING if value is None else units.number(round(value, 1))


def _data_uri(plot: Plot) -> str:
    """The picture as an address that holds it: ids and styles of one SVG can't reach another or the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(plot.svg.encode()).decode("ascii")
