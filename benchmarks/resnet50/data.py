"""Crops of scikit-learn's two sample photos: real pixels, without labels."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

SIZE = 224
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)  # ImageNet's, a channel, of pixels in [0, 1]
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def crops(count: int, *, seed: int) -> NDArray[np.float32]:
    """`count` random squares of the photos, scaled and normalised: `[count, 3, 224, 224]`."""
    random = np.random.default_rng(seed)
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    batch = np.empty((count, 3, SIZE, SIZE), dtype=np.float32)
    for i in range(count):
        photo = photos[i % len(photos)]
        side = int(random.integers(96, min(photo.size) + 1))
        left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
        crop = photo.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        batch[i] = ((np.asarray(crop, dtype=np.float32) / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)
    return batch


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """32 crops as the model takes them: `pixel_values` `[1, 3, 224, 224]`."""
    for crop in crops(32, seed=29):
        yield {"pixel_values": crop[np.newaxis]}
