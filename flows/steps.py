"""The run policy: each plain function of the data path as a Prefect task, with its name and retries.

No task has tags: before a tagged one runs, Prefect asks for limits of its tags, which takes up to 2 s each time.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from onnxmill.tasks import conversion, publish
from onnxmill.tasks.errors import ServiceError
from onnxmill.tasks.progress import ended, in_words
from onnxmill.tasks.report import StepRow

P = ParamSpec("P")
R = TypeVar("R")

LOGGER = logging.getLogger("onnxmill")


def _step(function: Callable[P, R], name: str, *, run_name: str | None = None) -> Task[P, R]:
    """`function` as a task. A value whose steps were all found in the memo shows as `Cached`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = cast(Callable[..., Any], function)(*args, on_progress=in_words(name, LOGGER.info), **kwargs)
        rows: tuple[StepRow, ...] = value.rows
        for row in rows:
            LOGGER.info("%s", ended(row))
        if rows and all(row.cached for row in rows):
            return Completed(name="Cached", data=value)
        return value

    # Prefect fills in defaults by the signature: what is given here is no parameter of the task
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.name != "on_progress"]
    run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]  # as inspect documents it
    policy = task(name=name, task_run_name=run_name or name, cache_policy=NO_CACHE, persist_result=False)
    return cast(Task[P, R], policy(run))


def _is_service_error(task: Any, run: Any, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), ServiceError)


def _service(function: Callable[P, R], name: str) -> Task[P, R]:
    """A task that talks to a service. It has retries of its own: one more try here is for what these do not see."""
    return task(
        name=name,
        task_run_name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_delay_seconds=2,
        retry_condition_fn=_is_service_error,
    )(function)


# compute: a child process each; what failed for a reason fails again, so there are no retries
samples = _step(conversion.samples, "samples")
reference = _step(conversion.reference, "reference")
export = _step(conversion.export, "export")
pin_opset = _step(conversion.pin_opset, "opset")
simplify = _step(conversion.simplified, "simplify")
score_source = _step(conversion.score_source, "score source")
calibrate = _step(conversion.calibrate, "calibrate")
quantize = _step(conversion.quantize, "quantize", run_name="quantize {variant.label}")
assess = _step(conversion.assess, "assess", run_name="assess {variant.label}")
benchmark = _step(conversion.benchmark, "benchmark", run_name="benchmark {variant.label} on {target}")

# services: idempotent by key, so that they may be repeated
log = _service(publish.log, "log")
promote = _service(publish.promote, "promote")
