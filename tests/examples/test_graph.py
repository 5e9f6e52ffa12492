"""The pipelines of the demo, drawn from a running server with the time of each step."""

import re

import numpy as np
import pytest
import shapes
import tritonclient.http as triton
from clients import Server

from halimede.cli.main import main
from tests.compat.serving import Serving


def test_demo_is_drawn_with_the_time_in_each_step(demo_server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    client = triton.InferenceServerClient(demo_server.http_url)
    tensor = triton.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"The cat sleeps."]], dtype=object))
    client.infer("text_embedding", [tensor])
    client.close()
    shapes.ask(Server("http", demo_server.http_url), shapes.drawn(seed=2))
    for model, steps in (
        ("text_embedding", ("tokenizer", "minilm", "pooling")),
        ("shapes", ("image_decoder", "shape_classifier", "shape_segmenter")),
    ):
        assert main(["graph", model, "--url", demo_server.http_url]) == 0
        out = capsys.readouterr().out
        assert re.match(rf"{model} \(ensemble, batch \d+\): \d+ requests, [\d.]+ (us|ms|s) each\n", out)
        assert all(step in out for step in steps)
        assert len(re.findall(r"queue [\d.]+ (?:ns|us|ms), compute [\d.]+ (?:us|ms|s)", out)) == 3
