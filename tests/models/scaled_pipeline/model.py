"""Scaling, principal components and logistic regression in one pipeline, fitted in a second."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

FITTED = 400
"""How many of the 569 tumours it is fitted to; the others are for the proof."""


def load() -> Pipeline:
    """`[n, 30]` measurements to malignant (0) or benign (1) and the probabilities `[n, 2]`."""
    measurements, kinds = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), PCA(10, random_state=3), LogisticRegression())
    return pipeline.fit(measurements[:FITTED].astype(np.float32), kinds[:FITTED])


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Tumours that it was not fitted to, one at a time: `[1, 30]`."""
    measurements, _ = load_breast_cancer(return_X_y=True)
    for row in measurements[FITTED:].astype(np.float32):
        yield {"measurements": row[np.newaxis]}
