"""Rows on which an estimator decides one way in float64 and perhaps another in float32."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxmill.calibration.samples import Array

ROWS = 1000
SEED = 20240811


def rows(model: Any, columns: int) -> tuple[Array, str]:
    """[ROWS, columns] in float64, and what they are.

    Where the steps before the last one can be inverted: rows that lie on the thresholds of its trees, or where it has
    none, rows of the scalers' means and deviations. Else standard normal ones.
    """
    rng = np.random.default_rng(SEED)
    steps = [step for _, step in model.steps if step != "passthrough"] if hasattr(model, "steps") else [model]
    before, last = steps[:-1], steps[-1]
    if not all(hasattr(step, "inverse_transform") for step in before):
        return rng.standard_normal((ROWS, columns)), "of normal values"
    table = rng.standard_normal((ROWS, getattr(last, "n_features_in_", columns)))
    thresholds = _thresholds(last)
    for feature, values in thresholds.items():
        table[:, feature] = rng.choice(np.unique(values), ROWS)
    for step in reversed(before):
        table = np.asarray(step.inverse_transform(table), np.float64)
    return table, "on the thresholds of its trees" if thresholds else "of the scale that it was fitted on"


def _thresholds(estimator: Any) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for tree in _trees(estimator):
        for feature, threshold in zip(tree.feature, tree.threshold, strict=True):
            if feature >= 0:  # not a leaf
                found[int(feature)].append(float(threshold))
    return found


def _trees(estimator: Any) -> Iterator[Any]:
    if hasattr(estimator, "tree_"):
        yield estimator.tree_
    for part in np.ravel(getattr(estimator, "estimators_", [])):
        yield from _trees(part)
