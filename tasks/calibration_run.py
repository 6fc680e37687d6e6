"""`calibrate`: the path to the prepared graph, one pass over the samples, and what a person can see in it.

The steps are `convert`'s own, under the same keys: what one of the two did, the other finds.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnxmill.calibration import tables
from onnxmill.calibration.methods import METHODS, Method
from onnxmill.tasks import calibration_parts, calibration_summary, conversion
from onnxmill.tasks import spec as specs
from onnxmill.tasks.calibration_html import html
from onnxmill.tasks.calibration_report import CalibrationReport
from onnxmill.tasks.calibration_summary import Seen
from onnxmill.tasks.conversion import Done
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.findings import refused
from onnxmill.tasks.progress import ended, in_words
from onnxmill.tasks.quantize import Observed
from onnxmill.tasks.report import StepRow

REPORT_JSON, REPORT_HTML = "calibration.json", "calibration.html"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What one run of `calibrate` is to do. `shard` (1, 1) is all samples; `merge` folders of parts; `table` a kind."""

    method: Method | None = None
    table: str | None = None
    shard: tuple[int, int] = (1, 1)
    merge: tuple[Path, ...] = ()
    fresh: bool = False


def asked(
    method: str | None, table: str | None, shard: str | None, merge: tuple[Path, ...], *, fresh: bool, out: bool
) -> Asked:
    """The options, checked. Raises `InputError` for unknown words, and for options that contradict each other."""
    methods: dict[str, Method] = {name: name for name in METHODS}
    if method and method not in methods:
        raise InputError("--method", method, "no such method", close_match(method, methods))
    if table and table not in tables.FORMS:
        raise InputError("--table", table, "no such kind of calibration table", close_match(table, tables.FORMS))
    place = calibration_parts.shard(shard) if shard else (1, 1)
    if shard and merge:
        raise InputError("--shard", shard, "makes a part, and --merge takes parts: give one of the two")
    if shard and table:
        raise InputError("--table", table, "a part has no table", "merge the parts, then write the table")
    if shard and not out:
        raise InputError("--shard", shard, "needs --out, a folder for this part alone")
    if merge and fresh:
        raise InputError("--fresh", None, "would not take the parts of --merge", "give one of the two")
    return Asked(methods[method] if method else None, table, place, merge, fresh)


def calibrate(path: Path, want: Asked, folder: Path, say: Say) -> CalibrationReport:
    """Calibrate, and write calibration.json and .html, the part or the table that was asked for, to `folder`.

    Raises `InputError` for the user's faults, `StepError` where a tool broke. A refusal is in the report's findings.
    """
    seen = observe(path, want, say)
    if seen.calibration and want.shard != (1, 1):
        assert seen.samples.calibration
        calibration_parts.write(
            seen.calibration, seen.samples.calibration.files, want.shard, conversion.store(), folder
        )
    say("finding ranges")
    report = calibration_summary.report(seen, os.path.relpath(path), want.method, want.shard)
    if want.table and report.exit_code == 0:
        file = calibration_summary.write_table(seen, want.method, want.table, folder)
        report = report.model_copy(update={"table": file})
    text = report.model_dump_json(indent=1) + "\n"
    for name, content in ((REPORT_HTML, html(report)), (REPORT_JSON, text)):
        temporary = folder / f".{name}"
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(folder / name)
    return report


def observe(path: Path, want: Asked, say: Say) -> Seen:
    """Run the steps to the calibration, or find them done; as far as the graph passes."""
    if not specs.load(path).data.calibration:
        raise InputError(
            "data.calibration", None, "is not in the spec: ranges are observed on samples", "give a callable or a path"
        )
    rows: list[StepRow] = []

    def told(done: Done) -> Done:
        rows.append(done.row)
        say(ended(done.row))
        return done

    job = conversion.prepare(path, fresh=want.fresh)
    samples = conversion.samples(job, in_words("samples", say))
    assert samples.calibration
    rows += samples.rows
    say(f"{samples.calibration.value} calibration samples")
    if want.shard[1] > int(str(samples.calibration.value)):
        given = "/".join(map(str, want.shard))
        raise InputError("--shard", given, f"there are {samples.calibration.value} samples: at most as many parts")
    reference = told(conversion.reference(job, samples, in_words("reference", say)))
    job = conversion.completed(job, reference)
    graphs = [told(conversion.export(job, reference, in_words("export", say)))]
    if not conversion.graph_faults(graphs[-1]):
        graphs.append(told(conversion.pin_opset(job, graphs[-1], reference, in_words("opset", say))))
    if not conversion.graph_faults(graphs[-1]):
        job = conversion.at_opset(job, graphs[-1])
        graphs.append(told(conversion.simplified(job, graphs[-1], reference, in_words("simplify", say))))
    if not conversion.graph_faults(graphs[-1]):
        graphs.append(told(conversion.prepared_for_int8(job, graphs[-1], reference, in_words("prepare", say))))
    if faults := conversion.graph_faults(graphs[-1]):
        return Seen(job, samples, None, faults, tuple(rows))
    prepared, excluded = graphs[-1], conversion.exclusions(job.spec)
    if want.merge:
        calibration_parts.merge(want.merge, prepared.files, samples.calibration.files, excluded, conversion.store())
    calibration = conversion.observed(job, prepared, samples, want.shard, in_words("calibrate", say))
    found = [Observed.model_validate(told(done).value).findings for _, done in calibration.observed]
    if faults := tuple(one for findings in found for one in findings if refused([one])):
        return Seen(job, samples, None, faults, tuple(rows))
    return Seen(job, samples, calibration, (), tuple(rows))
