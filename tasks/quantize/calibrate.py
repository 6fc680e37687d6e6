"""Calibrate: one pass of the prepared model over the samples, for all methods and variants that leave the same nodes
in float."""

from itertools import islice
from pathlib import Path

from onnxmill.calibration import statistics
from onnxmill.calibration.readers import SampleReader
from onnxmill.calibration.statistics import NotFiniteActivation
from onnxmill.tasks import machine
from onnxmill.tasks.findings import finding
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.quantize import CalibrationSettings, Observed, load_for, nothing_quantized, qdq
from onnxmill.tasks.quantize.prepare import left_in_float


def calibrate(settings: CalibrationSettings, model: Path, calibration: Path, out: Path) -> Observed:
    """Write the statistics of every tensor that will carry a quantizer to `out`."""
    proto = load_for(settings.exclude, model / MODEL)
    tensors = qdq.tensors_to_observe(proto, (*settings.exclude, *left_in_float(proto)))
    if not tensors:
        return Observed(findings=(nothing_quantized(proto),), tensors=0, samples=0)
    reader = SampleReader(calibration)
    number, of = settings.shard
    first, last = (len(reader) * part // of for part in (number - 1, number))
    doing = f"calibrating {len(tensors)} tensors"
    report_progress(doing, 0, last - first)
    try:
        seen = statistics.collect(
            proto,
            tensors,
            islice(reader, first, last),
            threads=machine.threads(),
            first=first,
            on_sample=lambda done: report_progress(doing, done, last - first),
        )
    except NotFiniteActivation as error:
        why = finding("QNT007", f"tensor {error.tensor}", f"sample {error.sample}: {error.detail}")
        return Observed(findings=(why,), tensors=len(tensors), samples=0)
    statistics.save(seen, out / statistics.FILE)
    return Observed(findings=(), tensors=len(tensors), samples=len(seen.positions))
