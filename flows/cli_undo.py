"""The commands that undo a promotion and show who moved what: they need the MLflow registry alone, no Prefect."""

import csv as csv_files
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from onnxmill.flows.terminal import STDERR, STDOUT, AsJson, Debug
from onnxmill.tasks.errors import InputError, OnnxmillError

if TYPE_CHECKING:  # what imports mlflow is imported by the command that needs it
    from onnxmill.tasks.audit_chain import Chain
    from onnxmill.tasks.track import Tracking
    from onnxmill.tasks.undo import Way

Name = Annotated[str, typer.Argument(help="The registered model.", show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, in one line, for the audit record.", show_default=False)]
Row = dict[str, str | int | bool | None]
MOVES = ["when", "model", "action", "version", "from", "to", "done", "who", "why", "artifact", "source", "sha256"]
SERVED = ["model", "at", "version", "since", "who"]


def rollback(
    reason: Reason,
    name: Annotated[str | None, typer.Argument(help="The registered model.", show_default=False)] = None,
    to: Annotated[int | None, typer.Option(help="The version to go back to; by default what served before.")] = None,
    promoted_since: Annotated[
        str | None,
        typer.Option(help="Instead of NAME: every model whose champion was promoted then or later (ISO date, UTC)."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --promoted-since: do what it lists.")] = False,
    debug: Debug = False,
) -> None:
    """Give the alias `champion` back to the version that served before, and reject the version that serves now.

    The version is downloaded, compared with its digest and run once before the alias moves. The rejected digest is
    not promoted again until `onnxmill release` lets it back. Works without Prefect and the model's framework.
    """
    if (name is None) == (promoted_since is None):
        raise InputError("NAME", name, "or --promoted-since must be given, not both", "`onnxmill rollback --help`")
    if promoted_since is not None and to is not None:
        raise InputError("--to", to, "goes with one NAME", "leave it out with --promoted-since")
    from onnxmill.tasks import publish, undo

    undo.check_reason(reason)
    since = undo.instant("--promoted-since", promoted_since, end_of_day=False) if promoted_since else None
    tracking = publish.tracking()
    if name is not None:
        _roll_back(tracking, undo.way_back(tracking, name, to), reason)
        return
    assert since
    ways = undo.promoted_since(tracking, since)
    failed = 0
    for way in ways:
        if isinstance(way, OnnxmillError):
            failed += 1
            _print(f"cannot go back: {way}", "red")
        elif not yes:
            _print(f"{way.model}: version {way.now} would go back to version {way.back}")
        else:
            try:
                _roll_back(tracking, way, reason)
            except OnnxmillError as error:  # the others still go back
                failed += 1
                _print(f"{way.model}: {error}", "red")
    if not ways:
        _print(f"no champion was promoted since {since:%Y-%m-%d %H:%M} UTC")
    elif not yes:
        _print("nothing moved. next: the same command with --yes", "bold cyan")
    if failed:
        raise typer.Exit(1)


def hold(name: Name, reason: Reason, debug: Debug = False) -> None:
    """Hold a model: no conversion and no rollback moves its alias until `onnxmill release NAME`."""
    from onnxmill.tasks import publish, undo

    undo.hold(publish.tracking(), name, reason)
    _print(f"{name} is held\nnext, to lift it: onnxmill release {name} --reason …")


def release(
    name: Name,
    reason: Reason,
    version: Annotated[
        int | None, typer.Option(help="Let the digest of this rolled-back version be promoted again.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Lift the hold of a model or, with --version, the rejection of a version that was rolled back.

    Moves no alias: the next `onnxmill convert` decides anew.
    """
    from onnxmill.tasks import publish, undo

    undo.release(publish.tracking(), name, version, reason)
    _print(f"{name} is no longer held" if version is None else f"{name}: version {version} may be promoted again")


def history(
    name: Annotated[str | None, typer.Argument(help="The registered model; by default all.")] = None,
    at: Annotated[str | None, typer.Option(help="Say which version served then (ISO date or time, UTC).")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV alone on stdout.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show every promotion, rollback, hold and release, newest last, after a check of the whole record.

    With --at, the version that served at that time; a date alone means its end. Exit 1 when a record was edited,
    deleted or reordered: it is named.
    """
    if csv and json:
        raise InputError("--csv", None, "and --json exclude each other", "give one of the two")
    from onnxmill.tasks import audit, publish, registry_marks, undo

    then = undo.instant("--at", at, end_of_day=True) if at is not None else None
    tracking = publish.tracking()
    if name is not None:
        registry_marks.versions(tracking, name)  # a name that is none is told as such
    chains = {model: audit.read(tracking, model) for model in ([name] if name else audit.models(tracking))}
    rows = [row for model, chain in chains.items() for row in _rows(model, chain)]
    columns = MOVES
    if then:
        columns = SERVED
        served = {model: undo.served_at(chain, then) for model, chain in chains.items()}
        rows = [
            {"model": model, "at": then.isoformat(), "version": move.after if move else None}
            | {"since": f"{move.since:%Y-%m-%d %H:%M:%S}" if move else None, "who": move.who if move else None}
            for model, move in served.items()
        ]
    elif name is None:
        rows.sort(key=lambda row: str(row["when"]))  # of one model: each after those that it knew
    if json:
        faults = {model: list(chain.faults) for model, chain in chains.items() if chain.faults}
        STDOUT.print_json(data={"rows": rows, "faults": faults})
    elif csv:
        writer = csv_files.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif rows:
        _print_table(rows)
    else:
        _print("nothing is on record yet: the first promotion will be")
    faults_found = [f"{model}: {fault}" for model, chain in chains.items() for fault in chain.faults]
    for fault in faults_found:
        STDERR.print(f"broken: {fault}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    if faults_found:
        raise typer.Exit(1)


# --- details ---------------------------------------------------------------------------------------------------------


def _roll_back(tracking: "Tracking", way: "Way", reason: str) -> None:
    from onnxmill.tasks import undo

    with STDERR.status(f"trying version {way.back.number} of {way.model}"):
        move = undo.rollback(tracking, way, reason)
    if not move.moved:
        raise OnnxmillError(f"registry: '{way.model}' was not rolled back: {move.why}")
    _print(f"{way.model}: version {way.back.number} serves again; version {way.now.number} is rejected", "bold green")
    _print(f"next, to let it back: onnxmill release {way.model} --version {way.now.number} --reason …")


def _rows(model: str, chain: "Chain") -> list[Row]:
    return [
        {
            "when": f"{move.since:%Y-%m-%d %H:%M:%S}",
            "model": model,
            "action": move.action,
            "version": move.version,
            "from": move.before,
            "to": move.after,
            "done": move.done,
            "who": move.who,
            "why": move.why + (f" [{move.note}]" if move.note else ""),
            "artifact": move.digest,
            "source": move.source_digest,
            "sha256": move.sha256,
        }
        for move in chain.moves()
    ]


def _print_table(rows: list[Row]) -> None:
    """All columns but the digests, which --csv and --json have."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = [name for name in rows[0] if name not in ("artifact", "source", "sha256", "done")]
    for name in columns:
        table.add_column(name, no_wrap=name in ("when", "action"))
    for row in rows:
        table.add_row(*(Text(_shown(row, name)) for name in columns))
    STDOUT.print(table)


def _shown(row: Mapping[str, object], name: str) -> str:
    value = row[name]
    if name == "action" and not row["done"]:
        return f"{value}, not done"
    return "-" if value is None else str(value)


def _print(text: str, style: str = "") -> None:
    STDOUT.print(text, style=style or None, highlight=False, markup=False, soft_wrap=True)
