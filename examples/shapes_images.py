"""Pictures of one shape each, drawn here: what the classifier and the segmenter of the demo learn, and are tried with.

A shape of any colour, size and direction lies anywhere on a background that changes its colour from one side to the
other; the light is uneven and there is noise. Knows how to draw; not who looks at it.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

LABELS = ("circle", "square", "triangle", "star")
SIZE = 64  # of the pictures that the models see, in both directions
_FINER = 3  # a mask is drawn so many times as large, for smooth edges

Floats = NDArray[np.float32]


class Scene(NamedTuple):
    """`picture` RGB; `mask` of the same size, 255 where the shape is; `label` a number of LABELS."""

    picture: Image.Image
    mask: Image.Image
    label: int


def draw(random: np.random.Generator, width: int = SIZE, height: int = SIZE, label: int | None = None) -> Scene:
    """A picture of the shape `label`, or of any."""
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
    """The corners of a shape around (0, 0), [n, 2]; none is further off than 1."""
    corners, inner = ((48, 1.0), (4, 1.0), (3, 1.0), (10, 0.45))[label]
    angles = turn + 2 * math.pi * np.arange(corners) / corners
    lengths = np.where(np.arange(corners) % 2, inner, 1.0)
    return np.stack([np.cos(angles) * lengths, np.sin(angles) * lengths], axis=1)


def _noise(random: np.random.Generator, width: int, height: int, coarseness: int) -> NDArray[np.float64]:
    """Soft spots, about -1 to 1."""
    spots = Image.fromarray(random.uniform(-1, 1, (coarseness, coarseness)).astype(np.float32))
    return np.asarray(spots.resize((width, height), Image.Resampling.BICUBIC), np.float64)


def _colours(random: np.random.Generator, width: int, height: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the background, [height, width, 3], and of the shape, [3]: far enough from each other to be seen."""
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
    """FP32 [3, 64, 64], 0 to 1: as the decoder of the demo hands pictures on."""
    small = picture.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1) / 255)
