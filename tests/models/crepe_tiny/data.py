"""Tones, whose pitch is known."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
BIN_CENTS, LOWEST_CENTS = 20.0, 1997.3794
"""Pitches are counted in cents above 10 Hz: those of torchcrepe's bins."""


def tone(pitch_hz: float) -> NDArray[np.float32]:
    """A frame `[1, 1024]` of three harmonics, mean 0 and deviation 1."""
    seconds = np.arange(1024) / RATE_HZ
    sound = np.sum([np.sin(2 * np.pi * k * pitch_hz * seconds) / k for k in (1, 2, 3)], axis=0)
    frame: NDArray[np.float32] = ((sound - sound.mean()) / sound.std()).astype(np.float32)
    return frame[np.newaxis]


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Sixteen tones from 100 Hz to 1 kHz."""
    for pitch_hz in np.geomspace(100, 1000, 16):
        yield {"frames": tone(float(pitch_hz))}


def evaluation() -> Iterator[tuple[dict[str, NDArray[np.float32]], float]]:
    """Forty others, each with its pitch in Hz."""
    for pitch_hz in np.geomspace(103, 970, 40):
        yield {"frames": tone(float(pitch_hz))}, float(pitch_hz)


def heard(outputs: dict[str, NDArray[np.float32]], pitch_hz: float) -> float:
    """1.0 where the most probable of `pitches` `[1, 360]` is less than half a semitone off, else 0.0."""
    cents = BIN_CENTS * float(outputs["pitches"].argmax()) + LOWEST_CENTS
    return float(abs(cents - 1200 * np.log2(pitch_hz / 10)) < 50)
