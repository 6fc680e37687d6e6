"""A real, SQLite-backed MLflow with made-up conversions: for the tests of the registry, of undo and audit."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.audit import carry_out
from onnxmill.tasks.audit_chain import Plan
from onnxmill.tasks.decide import Live, Policy, Standing, decide
from onnxmill.tasks.promotion import promote
from onnxmill.tasks.registry import VALIDATION, Move, live, prove, register, set_champion
from onnxmill.tasks.report import Decision, Report
from onnxmill.tasks.spec import Gate, Promote
from onnxmill.tasks.track import Logged, Tracking, log
from tests import conversions

GATE = Gate(max_rel=1e-4)


@dataclass(frozen=True)
class Made:
    """A logged and registered model."""

    standing: Standing
    run_id: str
    model_id: str
    reference: Path


@dataclass(frozen=True)
class World:
    tracking: Tracking
    folder: Path

    def log(self, name: str, proto: onnx.ModelProto, source: str = "s1") -> tuple[Report, Logged, Path]:
        """A conversion to one passed fp32 variant, logged; and the folder of that variant."""
        artifact, path = conversions.publish(Store(self.folder / "store"), proto)
        row = conversions.variant("fp32", digest=artifact.digest, size_bytes=artifact.size_bytes)
        report = conversions.report(name, row, source=source)
        key = f"{name}-{artifact.digest[:8]}"
        return (
            report,
            log(self.tracking, report, conversions.spec(name), key=key, models={"fp32": path}, files={}),
            path,
        )

    def reference(self, path: Path) -> Path:
        return conversions.reference(self.folder / "reference" / path.name, path / "model.onnx")

    def convert(self, name: str, scale: float, source: str) -> Decision:
        """A conversion that is promoted where the decision says so."""
        report, logged, path = self.log(name, conversions.model(scale), source)
        return promote(self.tracking, report, Promote(), logged, reference=self.reference(path), gates={"fp32": GATE})

    def version(self, model: str, scale: float) -> int:
        """A registered version that counts as proven, without the time that a proof takes."""
        version = self.register(model, self.make(model, scale))
        self.tracking.client().set_model_version_tag(model, str(version), VALIDATION, "passed")
        return version

    def move(self, model: str, version: int, before: int | None) -> Move:
        """Promote a version that counts as proven, on record."""
        plan = Plan(
            model=model, action="promote", before=before, after=version, version=version, digest=None,
            source_digest=None, why="made up",
        )  # fmt: skip
        return carry_out(self.tracking, plan, lambda: set_champion(self.tracking, model, version, before))

    def make(self, name: str, scale: float, external: bool = False) -> Made:
        report, logged, path = self.log(name, conversions.model(scale, external))
        policy = Policy(min_speedup=1.02, max_metric_regression=0.005, max_slowdown=0.1)
        standing = decide(report, Live(), policy, Promote()).standing
        assert standing
        return Made(standing, logged.run_ids["fp32"], logged.model_ids["fp32"], self.reference(path))

    def register(self, model: str, made: Made) -> int:
        return register(self.tracking, model, made.standing, made.run_id, made.model_id)

    def prove(self, model: str, version: int, made: Made, reference: Path | None = None) -> list[str]:
        digest = made.standing.artifact_digest
        found = prove(
            self.tracking,
            model,
            version,
            digest=digest,
            reference=reference or made.reference,
            gate=GATE,
            real_only=False,
        )
        return [f"{f.code} {f.where}" for f in found]

    def alias(self, model: str) -> int | None:
        champion = live(self.tracking, model).champion
        return champion.version if champion else None
