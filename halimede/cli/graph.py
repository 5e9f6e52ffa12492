"""`halimede graph`: a model's steps, on standard output. Runs on the main thread."""

import logging

from halimede.cli.arguments import Graph
from halimede.cli.terminal import say_error
from halimede.devtools.graph_pipeline import Pipeline, pipeline_of
from halimede.devtools.graph_sources import Folders, Running
from halimede.devtools.graph_text import json_of, mermaid_of, text_of
from halimede.errors import Error, Unsupported


def run(order: Graph) -> int:
    """0, or 1 if there is no such model or nothing to draw it with."""
    logging.getLogger("halimede").addHandler(logging.NullHandler())  # `halimede check` reports what a load would log
    try:
        source = Folders(order.repositories) if order.repositories else Running(order.url)
        drawn = _drawn(pipeline_of(order.model, source.config_of, source.times_of), order.format)
    except Error as error:
        say_error(str(error))
        return 1
    except (AttributeError, KeyError, TypeError, ValueError):  # whatever answered was not a Triton-compatible server
        say_error(f"{order.url} is no inference server: its configurations make no sense")
        return 1
    print(drawn)
    return 0


def _drawn(pipeline: Pipeline, form: str) -> str:
    if form == "svg":
        try:
            from halimede.devtools.graph_svg import svg_of
        except ImportError:
            raise Unsupported("SVG needs a library: pip install 'halimede[graph]'") from None
        return svg_of(pipeline)
    return {"text": text_of, "mermaid": mermaid_of, "json": json_of}[form](pipeline)
