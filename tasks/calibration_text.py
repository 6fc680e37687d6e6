"""A calibration in a terminal: rich renderables, readable at 100 columns and without colour."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxmill.calibration.methods import METHODS
from onnxmill.tasks import units
from onnxmill.tasks.calibration_html import mark, share
from onnxmill.tasks.calibration_report import CalibrationReport, TensorRow, next_step

ROWS = 40
"""Tensors shown at most; the page has all."""
STYLES = {"strong": "bold red", "some": "yellow", "": ""}
SHORT = {"moving-average": "average"}


def render(report: CalibrationReport) -> Group:
    """Sentence, findings, a row a tensor, a row a method, the next command."""
    parts: list[RenderableType] = [Text(report.sentence, style="bold red" if report.exit_code else "bold green"), ""]
    for found in report.findings:
        text = Text.assemble((found.code, "bold"), f" {found.where}: {found.message}\n", ("fix: ", "dim"), found.fix)
        parts += [Padding(text, (0, 0, 1, 0))]
    if report.tensors:
        parts += [_tensors(report), "", _methods(report), ""]
    advice, command = next_step(report)
    return Group(*parts, Text.assemble(("next: ", "bold"), advice, "\n  ", (command, "bold cyan")))


def _tensors(report: CalibrationReport) -> RenderableType:
    """The tensors in the graph's order; of many, those with the largest outliers."""
    shown = report.tensors
    if len(shown) > ROWS:
        worst = {row.name for row in report.worst_first[:ROWS]}
        shown = tuple(row for row in shown if row.name in worst)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("tensor", overflow="fold")
    table.add_column("taken by", no_wrap=True, overflow="ellipsis", max_width=14)
    for heading in ("lowest", "highest", "sample", "outlier"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in METHODS[1:]:
        table.add_column(SHORT.get(method, method), justify="right", no_wrap=True)
    for row in shown:
        table.add_row(*_cells(row))
    note = "outlier: minmax's range, as a multiple of that of 99 % of the values; then what each method keeps of it"
    if len(shown) < len(report.tensors):
        note = (
            f"{len(shown)} of {len(report.tensors)} tensors, those with the largest outliers: the page has all\n{note}"
        )
    return Group(table, Text(note, style="dim"))


def _cells(row: TensorRow) -> list[Text]:
    style = STYLES[mark(row.outlier_ratio)]
    flag = {"strong": "!! ", "some": "! ", "": ""}[mark(row.outlier_ratio)]  # without colour too
    return [
        Text(row.name, style),
        Text(", ".join(row.taken_by)),
        Text(units.number(row.low)),
        Text(units.number(row.high)),
        Text(str(row.extreme_sample)),
        Text(f"{flag}{row.outlier_ratio:.1f}×", style),
        *(Text(share(row.ranges[method].kept)) for method in METHODS[1:]),
    ]


def _methods(report: CalibrationReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("method", "narrowed", "kept, median", "kept, least", "clipped"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    table.add_column("used by", overflow="fold")
    for row in report.methods:
        name = f"{row.method} {row.percentile:g}" if row.percentile else row.method
        table.add_row(
            Text(name, "bold" if row.method == report.chosen else ""),
            f"{row.narrowed} of {len(report.tensors)}",
            share(row.kept_median),
            share(row.kept_least),
            share(row.clipped),
            Text(", ".join(row.variants)),
        )
    return table
