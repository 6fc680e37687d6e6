"""From what was observed to the rows of a calibration's report."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from statistics import median

import numpy as np
import onnx

from onnxmill.calibration import methods, statistics
from onnxmill.calibration.histogram import HALF, Histogram
from onnxmill.calibration.methods import METHODS, Method
from onnxmill.calibration.methods_scheme import Range
from onnxmill.calibration.statistics import Statistics
from onnxmill.tasks.calibration_report import OUTLIER, USUAL, Bars, MethodRange, MethodRow, TensorRow
from onnxmill.tasks.graph import nodes_of
from onnxmill.tasks.quantize.int8 import ACTIVATIONS

BARS = 128


def tensor_rows(seen: Statistics, graph: onnx.GraphProto, percent: float) -> tuple[TensorRow, ...]:
    """A row for each tensor of `seen`; `percent` is method percentile's."""
    found = {method: statistics.ranges(seen, method, percent, ACTIVATIONS) for method in METHODS}
    makers, takers = _makers(graph), _takers(graph)
    return tuple(
        _row(name, seen, {method: found[method][name] for method in METHODS}, makers.get(name, "input"), takers[name])
        for name in seen.histograms
    )


def method_rows(
    tensors: Sequence[TensorRow], percent: float, users: Mapping[Method, list[str]]
) -> tuple[MethodRow, ...]:
    """A row for each method; `users` are the variants of each."""
    values = sum(row.values for row in tensors)
    rows = []
    for method in METHODS:
        least = min(tensors, key=lambda row: row.ranges[method].kept)
        rows.append(
            MethodRow(
                method=method,
                percentile=percent if method == "percentile" else None,
                variants=tuple(users.get(method, ())),
                narrowed=sum(row.ranges[method].kept < 1 for row in tensors),
                kept_median=median(row.ranges[method].kept for row in tensors),
                kept_least=least.ranges[method].kept,
                kept_least_tensor=least.name,
                clipped=sum(row.ranges[method].clipped * row.values for row in tensors) / values,
            )
        )
    return tuple(rows)


def sentence(tensors: Sequence[TensorRow], samples: int, shard: tuple[int, int]) -> str:
    """The calibration in one line: whether outliers stretch ranges, and which is the worst."""
    number, of = shard
    part = f"part {number} of {of}: " if of > 1 else ""
    worst = max(tensors, key=lambda row: row.outlier_ratio)
    marked = sum(row.outlier_ratio >= OUTLIER for row in tensors)
    count = f"{part}{len(tensors)} tensors on {samples} samples"
    times = f"{worst.outlier_ratio:.1f}× that of {USUAL:g} % of its values"
    if not marked:
        return f"{count}: none has outliers (the widest range, of {worst.name}, is {times})"
    have = "1 has outliers" if marked == 1 else f"{marked} have outliers"
    return f"{count}: {have}; the worst is {worst.name}: its range is {times}, by sample {worst.extreme_sample}"


def clipped(histogram: Histogram, found: Range) -> float:
    """The share of the values outside a range; those of a bin that the range's end cuts are taken as evenly spread."""
    edges = np.clip(histogram.edges(), histogram.low, histogram.high)
    low, high = edges[:-1], edges[1:]
    inside = np.clip(np.minimum(high, found.high) - np.maximum(low, found.low), 0, None)
    whole = high - low
    alone = (low >= found.low) & (low <= found.high)  # a bin of one value
    share = np.divide(inside, whole, out=alone.astype(np.float64), where=whole > 0)
    return float((histogram.counts * (1 - share)).sum() / histogram.total)


def bars(histogram: Histogram) -> Bars:
    """The histogram from its lowest to its highest value, zero included, in `BARS` bars at most."""
    below, above = max(-histogram.low, 0.0) / histogram.width, max(histogram.high, 0.0) / histogram.width
    first, last = -min(floor(below) + (below > 0), HALF), min(floor(above) + 1, HALF)
    together = ceil((last - first) / BARS)
    counts = histogram.counts[first + HALF : last + HALF]
    counts = np.pad(counts, (0, -len(counts) % together)).reshape(-1, together).sum(1)
    return Bars(low=first * histogram.width, width=together * histogram.width, counts=tuple(counts.tolist()))


def _row(
    name: str, seen: Statistics, found: Mapping[Method, Range], made_by: str, taken_by: tuple[str, ...]
) -> TensorRow:
    histogram, extremes = seen.histograms[name], seen.extremes[name]
    usual = methods.percentile(histogram, ACTIVATIONS, USUAL)
    whole = found["minmax"].high - found["minmax"].low
    return TensorRow(
        name=name,
        made_by=made_by,
        taken_by=taken_by,
        values=histogram.total,
        low=histogram.low,
        high=histogram.high,
        low_sample=int(seen.positions[extremes[:, 0].argmin()]),
        high_sample=int(seen.positions[extremes[:, 1].argmax()]),
        outlier_ratio=whole / (usual.high - usual.low),
        ranges={method: _method_range(histogram, one, whole) for method, one in found.items()},
        histogram=bars(histogram),
    )


def _method_range(histogram: Histogram, found: Range, whole: float) -> MethodRange:
    half = (found.high - found.low) / (ACTIVATIONS.levels - 1) / 2
    return MethodRange(
        low=found.low,
        high=found.high,
        kept=(found.high - found.low) / whole,
        clipped=clipped(histogram, found),
        zeroed=1 - clipped(histogram, Range(-half, half)),
    )


def _makers(graph: onnx.GraphProto) -> dict[str, str]:
    return {name: node.op_type for node in nodes_of(graph) for name in node.output}


def _takers(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """The operators that take each tensor, in the graph's order, each once; "output" for what the model gives."""
    found: dict[str, list[str]] = {value.name: [] for value in graph.input}
    for node in nodes_of(graph):
        for name in node.output:
            found.setdefault(name, [])
    for node in nodes_of(graph):
        for name in node.input:
            found.setdefault(name, []).append(node.op_type)
    for value in graph.output:
        found.setdefault(value.name, []).append("output")
    return {name: tuple(dict.fromkeys(ops)) for name, ops in found.items()}
