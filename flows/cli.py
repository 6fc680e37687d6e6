"""onnxmill's command line. Stdout is for people (or, with --json, the report alone); everything else goes to stderr."""

import atexit
import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from onnxmill.flows import cli_undo
from onnxmill.flows.terminal import STDERR, STDOUT, AsJson, Debug
from onnxmill.tasks import spec as specs
from onnxmill.tasks.errors import InputError, OnnxmillError, StepError, redact
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.output import output_folder

app = typer.Typer(
    name="onnxmill",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Turn a trained model into ONNX variants, prove each against the source framework, measure each,
    and promote the best proven one in the MLflow registry.

    Start: `onnxmill doctor`, `onnxmill init model.py:load`, `onnxmill verify spec.yaml`,
    `onnxmill convert spec.yaml --out out`. Undo: `onnxmill rollback NAME --reason …`, `hold`, `release`, `history`.

    Exit codes: 0 done; 1 a tool or service broke; 2 bad spec, option or input; 3 refused: no variant passed, or a
    required one did not.

    Settings (environment): ONNXMILL_HOME, where everything is kept; MLFLOW_TRACKING_URI, PREFECT_API_URL, services to
    use instead of the embedded ones; ONNXMILL_LOADER_ROOTS, folders whose code may run; ONNXMILL_STEP_TIMEOUT_S,
    seconds a step may take; ONNXMILL_POLICY, the promotion policy.""",
)

SpecPath = Annotated[Path, typer.Argument(help="The spec, a YAML file.", show_default=False)]


@app.command()
def convert(
    spec: SpecPath,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json, report.html and the models.")] = None,
    json: AsJson = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every step, whatever was done before.")] = False,
    debug: Debug = False,
) -> None:
    """Export, prove, quantize, measure, log and promote one model.

    What was done before for the same content, settings and versions is not done again. Exit 3 when no variant passed,
    or one of `require:` did not.
    """
    specs.load(spec)  # a bad spec is told before anything starts
    _allow(spec.parent)
    with _shown(debug):
        LOGGER.info("starting")
        from onnxmill.flows import prefect_server

        with prefect_server.api(specs.home()) as wait_for_prefect:
            from onnxmill.tasks import publish

            publish.tracking()
            wait_for_prefect()
            from prefect.exceptions import FailedRun

            from onnxmill.flows.convert import convert as flow

            state = flow(str(spec), out=str(out or ""), fresh=fresh, return_state=True)
            raised = None if state.is_completed() else state.result(raise_on_failure=False)
            if isinstance(raised, BaseException) and not isinstance(raised, FailedRun):
                raise raised  # (FailedRun: the flow itself ended so, and wrote its report)
    _print_report(output_folder(str(spec), str(out or "")), json)


@app.command()
def verify(spec: SpecPath, json: AsJson = False, debug: Debug = False) -> None:
    """Check a spec before work: load the model and the data, run the model on the parity inputs, and stop there."""
    _allow(spec.parent)
    with _shown(debug):
        from onnxmill.tasks import verification

        facts = verification.verify(spec, lambda what: LOGGER.info("%s", what))
    if json:
        STDOUT.print_json(data=facts)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for what, found in facts.items():
        table.add_row(what, Text(found))
    STDOUT.print(table)
    shown = escape(str(spec))
    STDOUT.print(f"\n[bold green]{shown} can be converted[/]\nnext: [bold cyan]onnxmill convert {shown}[/]")


@app.command()
def calibrate(
    spec: SpecPath,
    out: Annotated[Path | None, typer.Option(help="Folder for calibration.json and calibration.html.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="minmax, moving-average, percentile, entropy or mse: of the table, and shaded in the page. By default "
            "that of the spec's first int8-static variant."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Write a calibration table too: onnxruntime, onnxruntime-trt or tensorrt.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Observe one part of the samples, as 2/3, and write it to --out.")
    ] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="A folder that --shard wrote; once for each part, then all are one.")
    ] = None,
    json: AsJson = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every step, whatever was done before.")] = False,
    debug: Debug = False,
) -> None:
    """Observe the ranges of a model's activations on its calibration samples, and show the outliers.

    One pass serves every method; `convert` finds it done, and the other way round. Exit 3 when the graph does not
    pass, cannot be quantized, or is not finite on a sample.
    """
    specs.load(spec)  # a bad spec is told before anything else
    _allow(spec.parent)
    from onnxmill.tasks import calibration_run as running

    want = running.asked(method, table, shard, tuple(merge or ()), fresh=fresh, out=bool(out))
    folder = output_folder(str(spec), str(out or ""))
    with _shown(debug):
        report = running.calibrate(spec, want, folder, lambda what: LOGGER.info("%s", what))
    if json:
        sys.stdout.write((folder / running.REPORT_JSON).read_text(encoding="utf-8"))
    else:
        from onnxmill.tasks.calibration_text import render

        STDOUT.print(render(report))
        files = [("page", running.REPORT_HTML), *([("table", report.table)] if report.table else [])]
        for what, name in files:
            STDOUT.print(f"{what}: {folder / name}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)


@app.command()
def init(
    model: Annotated[str, typer.Argument(help="An .onnx file, or a loader: model.py:load.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The spec to write.")] = Path("spec.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that is there.")] = False,
    debug: Debug = False,
) -> None:
    """Write a commented spec for a model, to be edited."""
    if out.exists() and not force:
        raise InputError("--out", str(out), "is there already", "give another name, or --force")
    if not out.parent.is_dir():
        raise InputError("--out", str(out), "its folder does not exist")
    from onnxmill.tasks.initial import initial_spec

    out.write_text(initial_spec(model, str(out)), encoding="utf-8")
    shown = escape(str(out))
    STDOUT.print(f"wrote {shown}\nnext: edit it, then [bold cyan]onnxmill verify {shown}[/]")


@app.command()
def doctor(json: AsJson = False, debug: Debug = False) -> None:
    """Say what of this machine can be used, and what is broken (exit 1)."""
    from onnxmill.tasks.doctor import checks

    rows = checks()
    if json:
        STDOUT.print_json(data=[{"check": row.what, "level": row.level, "found": row.found} for row in rows])
    else:
        styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(Text(row.level, styles[row.level]), row.what, Text(row.found))
        STDOUT.print(table)
    if any(row.level == "broken" for row in rows):
        raise typer.Exit(1)


for command in (cli_undo.rollback, cli_undo.hold, cli_undo.release, cli_undo.history):
    app.command()(command)


def main() -> None:
    """Run the command line; every error is one message on stderr and an exit code, a traceback only with --debug."""
    atexit.register(gc.freeze)  # else the interpreter spends more than a second on what ends with it anyway
    try:
        app(prog_name="onnxmill")
    except Exception as error:  # noqa: BLE001  the boundary: whatever a library raises is one message here
        sys.exit(_told(error))


# --- details ---------------------------------------------------------------------------------------------------------

LOGGER = logging.getLogger("onnxmill")


def _told(error: Exception) -> int:
    """Print an error, without credentials; its exit code."""
    if "--debug" in sys.argv:
        _print_error("".join(traceback.format_exception(error)), style="dim")
    if not isinstance(error, OnnxmillError):
        _print_error(f"error: {type(error).__name__}: {error}. With --debug you see where", style="bold red")
        return 1
    _print_error(f"error: {error}", style="bold red")
    if isinstance(error, StepError) and error.stderr_tail.strip():
        _print_error("\n".join(error.stderr_tail.strip().splitlines()[-5:]), style="dim")
    return error.exit_code


def _print_error(text: str, style: str) -> None:
    STDERR.print(redact(text), style=style, highlight=False, markup=False, soft_wrap=True)


def _allow(folder: Path) -> None:
    """Without a setting, the code beside the spec that was given on this command line may run, and no other."""
    os.environ.setdefault(ROOTS_SETTING, str(folder.resolve()))


@contextmanager
def _shown(debug: bool) -> Iterator[None]:
    """Our log as lines on stderr for this block, with a spinner on a terminal; Prefect's own only with `debug`."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "DEBUG" if debug else "CRITICAL")
    with STDERR.status("starting") as status:
        handler = _Lines(status)
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)
        try:
            yield
        except KeyboardInterrupt:
            STDERR.print("interrupted; the same command goes on with what is not finished", style="bold red")
            raise
        finally:
            LOGGER.removeHandler(handler)


class _Lines(logging.Handler):
    """One line a record, with the seconds since the start; on a terminal the spinner shows the latest."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self.started = time.monotonic()
        self.status = status

    def emit(self, record: logging.LogRecord) -> None:
        message = redact(record.getMessage())
        seconds = time.monotonic() - self.started
        STDERR.print(f"{seconds:6.1f} s  {message}", style="dim", highlight=False, markup=False, soft_wrap=True)
        self.status.update(message)


def _print_report(folder: Path, json: bool) -> None:
    """Print the report that a conversion wrote, and end with its exit code."""
    from onnxmill.tasks import summary
    from onnxmill.tasks.report import Report
    from onnxmill.tasks.report_text import render

    text = (folder / summary.REPORT_JSON).read_text(encoding="utf-8")
    report = Report.model_validate_json(text)
    if json:
        sys.stdout.write(text)
    else:
        STDOUT.print(render(report))
        STDOUT.print(f"report: {folder / summary.REPORT_HTML}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)


if __name__ == "__main__":
    main()
