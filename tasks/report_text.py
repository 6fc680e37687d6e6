"""The report in a terminal: rich renderables, readable at 100 columns and without colour."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxmill.tasks import units
from onnxmill.tasks.report import Report
from onnxmill.tasks.report_rows import Flagged, flagged, graph_notes, next_step, rows, serving

STYLES = {"passed": "green", "refused": "red", "failed": "red", "skipped": "dim"}
HEADLINE = {0: "bold green", 1: "bold red", 3: "bold red"}


def render(report: Report) -> Group:
    """Sentence, table, how the graph came about, what serves, refusals and warnings, the next command."""
    parts: list[RenderableType] = [
        Text(report.sentence, style=HEADLINE[report.exit_code]),
        "",
        _table(report),
    ]
    if notes := graph_notes(report):
        parts += ["", Text("; ".join(notes), style="dim")]
    for what, why in serving(report):
        parts += ["", Text.assemble((what, "bold"), "\n  ", why)]
    for group in flagged(report):
        parts += _findings(group)
    step = next_step(report)
    parts += ["", Text.assemble(("next: ", "bold"), step.advice, "\n  ", (step.command, "bold cyan"))]
    return Group(*parts)


def _table(report: Report) -> Table:
    shown = rows(report)
    targets = {row.target for row in shown if row.target != units.NOTHING}
    many = len(targets) > 1  # else the one target stands above the table, and leaves its column's room to names
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("variant", overflow="fold")
    table.add_column("status", no_wrap=True)
    if many:
        table.add_column("target", overflow="fold")
    for heading in ("p50 ms", "p99 ms", "speed-up", "size", "/fp32", "metric", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    if len(targets) == 1:
        table.title = Text(f"on {', '.join(targets)}", style="dim")
    for row in shown:
        table.add_row(
            Text(row.variant),
            Text(row.status, style=STYLES[row.status]),
            *([Text(row.target)] if many else []),
            row.measured if row.measured in ("unavailable", "refused") else row.p50_ms,
            row.p99_ms,
            Text(row.speedup),
            row.size,
            row.size_ratio,
            row.metric,
            row.metric_change,
        )
    return table


def _findings(group: Flagged) -> list[RenderableType]:
    """Code, where and numbers on one line, the way out under it. What is only on record stays in the page."""
    variant = group.variant
    found = [pair for pair in group.findings if pair[0].severity != "info"]
    if not found and variant.status == "passed":
        return []
    parts: list[RenderableType] = [
        "",
        Text.assemble((variant.name, "bold"), " ", (variant.status, STYLES[variant.status])),
    ]
    for f, target in found:
        where = f"{f.where} on {target}" if target and target != f.where else f.where
        text = Text.assemble((f.code, "bold"), f" {where}: {' '.join(f.message.split())}\n", ("fix: ", "dim"), f.fix)
        parts.append(Padding(text, (0, 0, 0, 2), expand=False))
    return parts
