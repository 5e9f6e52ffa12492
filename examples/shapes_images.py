"""Draws pictures of one shape each, to train and to test the classifier and the segmenter of the demo.

A shape of any colour, size and direction lies anywhere on a background with a colour gradient. The light is uneven and
there is noise.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

LABELS = ("circle", "square", "triangle", "star")
SIZE = 64  # width and height of the pictures that the models get
_FINER = 3  # masks are drawn at this multiple of their size, for smooth edges

Floats = NDArray[np.float32]


class Scene(NamedTuple):
    """`picture` is RGB, `mask` has the same size and is 255 inside the shape, `label` is an index of LABELS."""

    picture: Image.Image
    mask: Image.Image
    label: int


def draw(random: np.random.Generator, width: int = SIZE, height: int = SIZE, label: int | None = None) -> Scene:
    """Draws a picture of the shape `label`, or of a random shape."""
    label = int(random.integers(len(LABELS))) if label is None else label
    mask = _mask(random, width, height, label)
    shade = _noise(random, width, height, coarseness=5)[..., None] * random.uniform(4, 14)
    grain = random.normal(0, random.uniform(1, 7), (height, width, 3))
    ground, colour = _colours(random, width, height)
    inside = np.asarray(mask, np.float64)[..., None] / 255
    pixels = ground * (1 - inside) + colour * inside + shade + grain
    return Scene(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), mask, label)


def _mask(random: np.random.Generator, width: int, height: int, label: int) -> Image.Image:
    smaller = min(width, height)
    radius = random.uniform(0.17, 0.33) * smaller
    room = radius + 0.05 * smaller
    middle = np.array([random.uniform(room, width - room), random.uniform(room, height - room)])
    turn = random.uniform(0, 2 * math.pi)
    image = Image.new("L", (width * _FINER, height * _FINER))
    pencil = ImageDraw.Draw(image)
    outline = (outline_of(label, turn) * radius + middle) * _FINER
    pencil.polygon([(float(x), float(y)) for x, y in outline], fill=255)
    return image.resize((width, height), Image.Resampling.BOX)


def outline_of(label: int, turn: float) -> NDArray[np.float64]:
    """The corners of a shape around (0, 0): [n, 2], at a distance of at most 1."""
    corners, inner = ((48, 1.0), (4, 1.0), (3, 1.0), (10, 0.45))[label]
    angles = turn + 2 * math.pi * np.arange(corners) / corners
    lengths = np.where(np.arange(corners) % 2, inner, 1.0)
    return np.stack([np.cos(angles) * lengths, np.sin(angles) * lengths], axis=1)


def _noise(random: np.random.Generator, width: int, height: int, coarseness: int) -> NDArray[np.float64]:
    """Smooth noise, about -1 to 1."""
    spots = Image.fromarray(random.uniform(-1, 1, (coarseness, coarseness)).astype(np.float32))
    return np.asarray(spots.resize((width, height), Image.Resampling.BICUBIC), np.float64)


def _colours(random: np.random.Generator, width: int, height: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Random colours of the background, [height, width, 3], and of the shape, [3], that differ visibly."""
    start = random.uniform(30, 225, 3)
    end = (start + random.uniform(-50, 50, 3)).clip(10, 245)
    while True:
        colour = random.uniform(10, 245, 3)
        if min(np.linalg.norm(colour - start), np.linalg.norm(colour - end)) > 70:
            break
    angle = random.uniform(0, 2 * math.pi)
    across, down = np.linspace(-0.5, 0.5, width), np.linspace(-0.5, 0.5, height)[:, None]
    along = (across * math.cos(angle) + down * math.sin(angle) + 0.5).clip(0, 1)[..., None]
    return start * (1 - along) + end * along, colour


def as_tensor(picture: Image.Image) -> Floats:
    """The picture as FP32 [3, 64, 64], 0 to 1, like the output of the demo's `image_decoder`."""
    small = picture.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1) / 255)
