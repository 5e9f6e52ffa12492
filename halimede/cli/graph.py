"""`halimede graph`: a model's steps on the terminal, or in a file. Runs on the main thread."""

import logging
import sys
from pathlib import Path

from halimede.devtools.graph_drawing import drawing_of, title_of
from halimede.devtools.graph_pipeline import pipeline_of
from halimede.devtools.graph_sources import Folders, Running
from halimede.devtools.graph_svg import svg_of
from halimede.devtools.graph_text import text_of
from halimede.errors import Error
from halimede.options import Graph


def run(order: Graph) -> int:
    """0, or 1 where there is nothing to draw or no place to draw it."""
    logging.getLogger("halimede").addHandler(logging.NullHandler())  # what a load would tell is said by `check`
    try:
        source = Folders(order.repositories) if order.repositories else Running(order.url)
        pipeline = pipeline_of(order.model, source.config_of, source.times_of)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (AttributeError, KeyError, TypeError, ValueError):  # whoever answers, it is not what it should be
        print(f"error: {order.url} is no inference server: its configurations make no sense", file=sys.stderr)
        return 1
    drawing, title = drawing_of(pipeline), title_of(pipeline)
    if order.svg:
        try:
            Path(order.svg).write_text(svg_of(drawing, title), encoding="utf-8")
        except OSError as error:
            print(f"error: {order.svg}: {error.strerror}", file=sys.stderr)
            return 1
        return 0
    text = text_of(drawing, order.ascii or not _speaks_unicode())
    print(f"{title}\n\n{text}")
    return 0


def _speaks_unicode() -> bool:
    try:
        "╭▼·".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
