"""Generates the audio of telephone keys, to train a detector and to test it.

A key is two simultaneous tones, one of four low and one of four high frequencies, for at least 60 ms.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 8000
FRAME = 160  # samples (20 ms) for which the detector gives one class
HEARD = 480  # samples (60 ms) of tones until they count as a key
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477, 1633)
KEYS = "123A456B789C*0#D"
NONE = len(KEYS)  # the class of a frame without a key
CLASSES = NONE + 1
CLIP_SECONDS = 2.4

Wide = NDArray[np.float64]


class Clip(NamedTuple):
    """`samples` between -1 and 1, the class of each frame (`labels`), and the pressed `keys`."""

    samples: NDArray[np.float32]
    labels: NDArray[np.int64]
    keys: str


def make_clip(random: np.random.Generator, seconds: float = CLIP_SECONDS) -> Clip:
    """Generates random keys of 90 to 200 ms, tones that are too short to be keys, a voice, and noise."""
    count = int(seconds * SAMPLE_RATE) // FRAME * FRAME
    samples = _voice(random, count) + random.normal(0, 10 ** random.uniform(-2.6, -1.5), count)
    labels = np.full(count // FRAME, NONE)
    keys = ""
    at = int(random.uniform(0, 0.2) * SAMPLE_RATE)
    while True:
        key = int(random.integers(NONE))
        is_key = random.random() < 0.75
        length = int(random.uniform(*((0.09, 0.2) if is_key else (0.01, 0.035))) * SAMPLE_RATE)
        if at + length + FRAME > count:
            return Clip(np.clip(samples, -1, 1).astype(np.float32), labels, keys)
        samples[at : at + length] += _tone(random, key, length)
        if is_key:
            keys += KEYS[key]
            labels[_heard(at, at + length)] = key
        at += length + int(random.uniform(0.06, 0.25) * SAMPLE_RATE)


def _tone(random: np.random.Generator, key: int, length: int) -> Wide:
    """Both tones of a key, up to 1.5 % off their frequencies, and not equally loud."""
    time = np.arange(length) / SAMPLE_RATE
    wave = np.zeros(length)
    for frequency in (LOW[key // 4], HIGH[key % 4]):
        off = random.uniform(0.985, 1.015)
        wave += random.uniform(0.08, 0.3) * np.sin(2 * np.pi * (frequency * off * time + random.random()))
    return wave


def _voice(random: np.random.Generator, count: int) -> Wide:
    """A sound like a voice: a gliding pitch with overtones, of varying loudness."""
    time = np.arange(count) / SAMPLE_RATE
    pitch = random.uniform(90, 240) * (1 + 0.2 * np.sin(2 * np.pi * random.uniform(0.3, 2) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    wave = sum(random.uniform(0.2, 1) / n * np.sin(n * phase + random.uniform(0, 6)) for n in range(1, 12))
    loudness = np.clip(np.sin(2 * np.pi * random.uniform(0.5, 3) * time + random.uniform(0, 6)), 0, 1)
    return np.asarray(random.uniform(0, 0.1) * loudness * wave)


def _heard(start: int, end: int) -> NDArray[np.bool_] | slice:
    """The frames of which at least half is tone, after the tone has lasted for `HEARD` samples."""
    first = -(-(start + HEARD) // FRAME) - 1
    return slice(first, (end + FRAME // 2) // FRAME)


def pressed(classes: Sequence[int] | NDArray[Any]) -> str:
    """The keys in a series of classes, one class for each frame. A run of at least two equal frames is one key."""
    keys, before, length = "", NONE, 0
    for each in classes:
        length = length + 1 if each == before else 1
        before = each
        if each != NONE and length == 2:
            keys += KEYS[each]
    return keys
