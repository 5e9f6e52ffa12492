"""Models in the style of Triton's documentation, unchanged on both servers, asked by the official clients: `add_sub`,
models that call it, decoupled ones, ones that complete their configuration, and a pipeline from texts to labels."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance import rawhttp, servers, transcript
from tests.conformance.case import encoded, post
from tests.conformance.clients import (
    Refusal,
    config_of,
    over_grpc,
    over_http,
    over_stream,
    same_of_both,
)
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair

MODELS = Path(__file__).resolve().parent / "documented_models"
LEFT, RIGHT = np.array([1, 2, 3, 4.5], np.float32), np.array([0.5, -1, 0, 4], np.float32)
SUM, DIFFERENCE = [1.5, 1.0, 3.0, 8.5], [0.5, 3.0, 3.0, 0.5]


@pytest.fixture(scope="module")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("documented")
    with pair_of(servers.copy_models(folder / "models", MODELS), folder) as both:
        yield both


def texts(*rows: str) -> Any:
    return {"TEXT": np.array([[row.encode()] for row in rows], object).reshape(len(rows), 1)}


def repeats(values: list[int], delays: list[int], wait: int = 0) -> Any:
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.array(delays, np.uint32),
        "WAIT": np.array([wait], np.uint32),
    }


def squares(number: int) -> Any:
    return {"IN": np.array([number], np.int32)}


@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_add_sub(pair: Pair, ask: Any) -> None:
    arrays = {"INPUT0": LEFT, "INPUT1": RIGHT}
    answer = same_of_both(pair, lambda server: ask(server, "add_sub", arrays))
    assert answer == {"OUTPUT0": ["float32", SUM], "OUTPUT1": ["float32", DIFFERENCE]}
    answer = same_of_both(pair, lambda server: ask(server, "add_sub", arrays, outputs=["OUTPUT1"]))
    assert answer == {"OUTPUT1": ["float32", DIFFERENCE]}


@pytest.mark.parametrize("arrays", [{"INPUT0": LEFT}, {"INPUT0": LEFT, "INPUT1": RIGHT[:3]}, {}])
@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_add_sub_of_wrong_inputs(pair: Pair, ask: Any, arrays: Any) -> None:
    assert isinstance(same_of_both(pair, lambda server: ask(server, "add_sub", arrays)), Refusal)


@pytest.mark.parametrize("ask", [over_http, over_grpc])
@pytest.mark.parametrize("model", ["add_sub", "nope", "classify"])
def test_model_that_calls_the_one_it_is_told(pair: Pair, ask: Any, model: str) -> None:
    arrays = {"MODEL_NAME": np.array([model.encode()], object), "INPUT0": LEFT, "INPUT1": RIGHT}
    answer = same_of_both(pair, lambda server: ask(server, "bls_sync", arrays))
    assert (answer == {"OUTPUT0": ["float32", SUM], "OUTPUT1": ["float32", DIFFERENCE]}) == (model == "add_sub")


@pytest.mark.rows("P52")
@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_model_that_calls_two_at_once(pair: Pair, ask: Any) -> None:
    arrays = {"INPUT0": LEFT, "INPUT1": RIGHT}
    answer = same_of_both(pair, lambda server: ask(server, "bls_async", arrays))
    assert answer == {"OUTPUT0": ["float32", SUM], "OUTPUT1": ["float32", [-value for value in DIFFERENCE]]}


@pytest.mark.rows("P6")
def test_responses_after_execute_returned_come_with_their_delays(pair: Pair) -> None:
    requests = (repeats([4, 2, 0, 1], [1, 30, 5, 0]), repeats([7], [0], 20), repeats([], []), repeats([5, 6], [0, 60]))
    answers = same_of_both(pair, lambda server: over_stream(server, "repeat", *requests))
    values = [(name, None if answer is None else (answer["OUT"][1], answer["IDX"][1])) for name, answer in answers]
    assert values == [
        *(("0", ([value], [i])) for i, value in enumerate([4, 2, 0, 1])),
        *[("0", None), ("1", ([7], [0])), ("1", None), ("2", None)],
        *[("3", ([5], [0])), ("3", ([6], [1])), ("3", None)],
    ]


@pytest.mark.rows("P6")
def test_as_many_responses_as_asked_for(pair: Pair) -> None:
    counts = (3, 0, 1, 20, -2)
    answers = same_of_both(pair, lambda server: over_stream(server, "square", *map(squares, counts)))
    refused = [answer for _, answer in answers if isinstance(answer, Refusal)]
    assert [answer.message for answer in refused] == ["-2 is below 0"]
    for number, count in enumerate(counts):
        found = [answer for name, answer in answers if name == str(number)]
        assert found == [{"OUT": ["int32", [count]]}] * count + [None]


@pytest.mark.parametrize("model", ["repeat", "square"])
@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_decoupled_models_want_a_stream(pair: Pair, ask: Any, model: str) -> None:
    arrays = squares(2) if model == "square" else repeats([1], [0])
    assert isinstance(same_of_both(pair, lambda server: ask(server, model, arrays)), Refusal)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_decoupled_model_over_http(pair: Pair, count: int) -> None:
    body = encoded({"IN": count})
    asked = post("/v2/models/square/generate_stream", body, [("Content-Type", "application/json")])
    answer = same_of_both(pair, lambda server: transcript.of_http(rawhttp.converse(server.http, (asked,))).text)
    assert answer.count('"OUT"') == count


@pytest.mark.rows("P1", "P31")
@pytest.mark.parametrize(
    ("model", "batch", "dynamic"),
    [
        ("completed_flat", 0, False),
        ("completed_batch", 4, False),
        ("completed_dynamic", 4, True),
        ("completed_directly", 4, True),
    ],
)
def test_configuration_is_completed_alike(pair: Pair, model: str, batch: int, dynamic: bool) -> None:
    config = same_of_both(pair, lambda server: config_of(server, model))
    assert (config["max_batch_size"], "dynamic_batching" in config) == (batch, dynamic)
    shape = (2, 4) if batch else (4,)
    for arrays in (
        {"INPUT0": np.ones(shape, np.float32)},
        dict.fromkeys(("INPUT0", "INPUT1"), np.ones(shape, np.float32)),
    ):
        answer = same_of_both(pair, partial(over_grpc, model=model, arrays=arrays))
        assert answer == {"OUTPUT0": ["float32", np.full(shape, len(arrays) + batch, np.float32).tolist()]}


@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_texts_become_labels(pair: Pair, ask: Any) -> None:
    rows = ("Good!", "an awful, bad day", "", "not good, NOT fine: bad", "Größe 数")
    answer = same_of_both(pair, lambda server: ask(server, "sentiment", texts(*rows)))
    assert [label for [label] in answer["LABEL"][1]] == [b"positive", b"negative", b"negative", b"negative", b"neutral"]
    tokens = same_of_both(pair, lambda server: ask(server, "tokenize", texts("good unheard", "bad")))
    assert tokens["input_ids"] == ["int64", [[2, 1], [4, 0]]]
    assert tokens["attention_mask"] == ["int64", [[1, 1], [1, 0]]]


@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_what_a_step_of_the_pipeline_raises_reaches_the_client(pair: Pair, ask: Any) -> None:
    arrays = {"TEXT": np.array([[b"\xff"]], object)}
    answer = same_of_both(pair, lambda server: ask(server, "sentiment", arrays))
    assert isinstance(answer, Refusal)
    assert "tokenize: Failed to process the request(s) for model 'tokenize_0_0', message: Unicode" in answer.message
