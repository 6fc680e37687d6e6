"""What is logged of a report under which name: metrics with their units, parameters. Pure: no MLflow in here."""

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

from onnxmill.tasks.artifact import sha256_of
from onnxmill.tasks.errors import redact
from onnxmill.tasks.report import Report, VariantRow
from onnxmill.tasks.spec import Spec


def conversion_metrics(report: Report) -> dict[str, float]:
    """`seconds.<step>`, or `seconds.<step>.<variant>`: what each step took in this run (near 0 when cached)."""
    return {_key("seconds", row.step, *([row.variant] if row.variant else [])): row.seconds for row in report.steps}


def conversion_params(report: Report, spec: Spec) -> dict[str, str]:
    """The spec but for its variants, the machine and the versions."""
    settings = spec.model_dump(mode="json", exclude={"variants"})
    return {
        **flatten(settings),
        **{_key("machine", name): str(value) for name, value in report.machine.items()},
        **{_key("version", name): value for name, value in report.versions.items()},
    }


def variant_metrics(row: VariantRow) -> dict[str, float]:
    """Every number of a variant: `size_bytes`, `metric`, `parity_max_rel.<output>`, `latency_p50_ms.<target>`, …

    What has no value is not logged.
    """
    found: dict[str, float | None] = {
        "quantized_nodes": row.quantized_nodes,
        "quantizable_nodes": row.quantizable_nodes,
        "size_bytes": row.artifact.size_bytes if row.artifact else None,
    }
    if row.metric:
        found |= {
            "metric": row.metric.variant,
            "metric_source": row.metric.source,
            "metric_drop_low": row.metric.drop_interval[0],
            "metric_drop_high": row.metric.drop_interval[1],
            "metric_samples": row.metric.samples,
        }
    for output in row.parity.outputs if row.parity else ():
        numbers = output.model_dump(exclude={"name"})
        found |= {_key(f"parity_{name}", output.name): value for name, value in numbers.items()}
    for result in row.results:
        low, high = result.speedup_interval or (None, None)
        found |= {
            _key(name, result.target): value
            for name, value in {
                "latency_p50_ms": result.p50_ms,
                "latency_p95_ms": result.p95_ms,
                "latency_p99_ms": result.p99_ms,
                "throughput_per_s": result.throughput_per_s,
                "peak_rss_mb": result.peak_rss_mb,
                "load_ms": result.load_ms,
                "speedup": result.speedup,
                "speedup_low": low,
                "speedup_high": high,
            }.items()
        }
    return {name: float(value) for name, value in found.items() if value is not None}


def variant_params(row: VariantRow, spec: Spec) -> dict[str, str]:
    """The variant's settings, what its model is, and how it was measured."""
    found: dict[str, JsonValue] = {"recipe": row.recipe}
    setting = next((v for v in spec.variants if v.label == row.name), None)
    if setting:
        found |= setting.model_dump(mode="json")
    if row.artifact:
        found |= {"opset": row.artifact.opset, "ir_version": row.artifact.ir_version}
    for result in row.results:
        found |= {
            _key(name, result.target): value
            for name, value in {
                "status": result.status,
                "fidelity": result.fidelity,
                "threads": result.threads,
                "baseline": result.baseline,
                "dims": json.dumps(result.dims, sort_keys=True),
            }.items()
        }
    return flatten(found)


def flatten(value: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys, lists as JSON; null and "" are left out, credentials too."""
    found: dict[str, str] = {}
    for name, item in value.items():
        key = f"{prefix}{name}"
        if isinstance(item, dict):
            found |= flatten(item, f"{key}.")
        elif item not in (None, ""):
            found[_key(key)] = redact(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
    return found


def _key(*parts: str) -> str:
    """A name that MLflow takes; one that had to be changed or cut ends with a hash, so that no two become one."""
    name = ".".join(parts)
    safe = re.sub(r"[^\w.\-/ ]|^[./]|(?<=/)[./]|/$", "_", name, flags=re.ASCII)
    return name if safe == name and len(name) <= 200 else f"{safe[:190]}-{sha256_of(name)[:8]}"
