"""Asks a running server which shapes are in pictures, and where, and writes the answers as a picture.

PNG and JPEG files are sent unchanged. The demo's ensemble `shapes` decodes them and runs two models on the pixels at
the same time. Without files, four pictures are drawn here. It works with any server that speaks Triton's protocol and
has this ensemble.
"""

import argparse
import io
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import clients
import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont, ImageOps
from shapes_images import LABELS, draw

LARGEST_BATCH = 16  # `max_batch_size` of the ensemble
TILE = (176, 132)
GAP, CAPTION = 10, 24
PAPER, INK, LINE = (250, 250, 248), (30, 30, 34), (255, 214, 10)


class Seen(NamedTuple):
    """The server's answer for a picture. `mask` is UINT8 [64, 64], 255 inside the shape."""

    label: str
    probability: float
    mask: Image.Image


def ask(server: clients.Server, files: Sequence[bytes]) -> list[Seen]:
    """Sends the files in batches. Raises ClientError if one of them is not a picture."""
    with server.connected() as client:
        starts = range(0, len(files), LARGEST_BATCH)
        batches = (files[start : start + LARGEST_BATCH] for start in starts)
        return [seen for batch in batches for seen in _ask_batch(server.triton, client, batch)]


def _ask_batch(triton: Any, client: Any, files: Sequence[bytes]) -> list[Seen]:
    tensor = triton.InferInput("FILE", [len(files), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[file] for file in files], dtype=object))
    outputs = [triton.InferRequestedOutput("shape", class_count=1), triton.InferRequestedOutput("mask")]
    result = client.infer("shapes", [tensor], outputs=outputs)
    seen = []
    for text, mask in zip(result.as_numpy("shape").reshape(-1), result.as_numpy("mask"), strict=True):
        probability, _, label = text.decode().split(":")
        seen.append(Seen(label, float(probability), Image.fromarray(mask)))
    return seen


def sheet(files: Sequence[bytes], seen: Sequence[Seen]) -> Image.Image:
    """A sheet of all pictures. Below each is the same picture, darkened except for the shape, and its label."""
    columns = min(4, len(files))
    width, height = TILE[0] + GAP, 2 * TILE[1] + CAPTION + 2 * GAP
    rows = -(-len(files) // columns)
    paper = Image.new("RGB", (columns * width + GAP, rows * height + GAP), PAPER)
    for i, (file, each) in enumerate(zip(files, seen, strict=True)):
        left, top = GAP + i % columns * width, GAP + i // columns * height
        _put(paper, left, top, file, each)
    return paper


def _put(paper: Image.Image, left: int, top: int, file: bytes, seen: Seen) -> None:
    with Image.open(io.BytesIO(file)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    tile = ImageOps.contain(upright, TILE)
    at = left + (TILE[0] - tile.width) // 2, top + (TILE[1] - tile.height) // 2
    paper.paste(tile, at)
    paper.paste(overlay(tile, seen.mask), (at[0], at[1] + TILE[1] + GAP // 2))
    text = f"{seen.label}  {seen.probability:.1%}"
    font = ImageFont.load_default(16)
    place = left + TILE[0] // 2, top + 2 * TILE[1] + GAP // 2 + CAPTION // 2
    ImageDraw.Draw(paper).text(place, text, INK, font, anchor="mm")


def overlay(picture: Image.Image, mask: Image.Image) -> Image.Image:
    """The picture, darkened outside the mask, with a line around the mask."""
    inside = mask.resize(picture.size, Image.Resampling.BICUBIC).point(lambda value: 255 if value > 127 else 0)
    dark = Image.blend(ImageOps.grayscale(picture).convert("RGB"), Image.new("RGB", picture.size), 0.65)
    shown = Image.composite(picture, dark, inside)
    rim = ImageChops.difference(inside.filter(ImageFilter.MaxFilter(5)), inside)
    shown.paste(LINE, mask=rim)
    return shown


def drawn(seed: int) -> list[bytes]:
    """Draws a picture of each shape, alternately as PNG and JPEG files."""
    random = np.random.default_rng(seed)
    files = []
    for label in range(len(LABELS)):
        file = io.BytesIO()
        draw(random, 240, 180, label).picture.save(file, "PNG" if label % 2 == 0 else "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Say which shapes are in pictures, and where.")
    parser.add_argument("files", nargs="*", type=Path, help="PNG or JPEG; without any, four are drawn")
    clients.add_server(parser, "http")
    parser.add_argument("--output", type=Path, default=Path("shapes.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the drawn pictures (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return clients.run("shapes", partial(work, parse(arguments)))


def work(options: argparse.Namespace) -> None:
    try:
        files = [path.read_bytes() for path in options.files] or drawn(options.seed)
    except OSError as error:
        raise clients.ClientError(f"{error.filename}: {error.strerror}") from None
    names = options.files or [f"drawn {label}" for label in LABELS]
    start = time.perf_counter()
    seen = ask(clients.server_of(options), files)
    milliseconds = (time.perf_counter() - start) * 1e3
    for name, each in zip(names, seen, strict=True):
        share = np.count_nonzero(np.asarray(each.mask)) / (each.mask.width * each.mask.height)
        print(f"{name!s:<16} {each.label:<8} {each.probability:6.1%}  {share:4.0%} of the picture")
    try:
        sheet(files, seen).quantize(128).save(options.output, optimize=True)
    except OSError as error:
        raise clients.ClientError(f"{options.output}: {error.strerror or error}") from None
    print(f"\n{len(files)} pictures in {milliseconds:.0f} ms; {options.output} shows them")


if __name__ == "__main__":
    sys.exit(main())
