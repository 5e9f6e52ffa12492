"""Ensembles in an engine with real models: their loads and unloads, and that requests leave nothing behind."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from halimede import engine_port as port
from halimede.engine.engine import Engine
from halimede.errors import Cancelled, Error, NotFound
from halimede.options import ServerOptions
from halimede.requests import InferResponse
from halimede.tensors import array_of
from tests.engine.engines import IDENTITY, Awaited, ask, infer, options_for, request_of, run, running

HELD = IDENTITY + "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 10000000 }"
"""A model whose batch waits for a second request for longer than a test takes."""


def ensemble(*steps: tuple[str, str, str], more: str = "", sched: str = "") -> str:
    """Steps as model, and the tensors that go in and come out."""
    text = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{given}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{made}" }} }} '
        for model, given, made in steps
    )
    tensors = (
        'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } '
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } '
    )
    return f'platform: "ensemble" max_batch_size: 4 {tensors} ensemble_scheduling {{ {text} {sched} }} {more}'


CHAIN = ensemble(("a", "INPUT0", "x"), ("b", "x", "OUTPUT0"))
MODELS = {"a": IDENTITY, "b": IDENTITY, "e": CHAIN}


def explicit(root: Path, models: dict[str, str], **more: object) -> ServerOptions:
    return options_for(root, models, model_control_mode="explicit", **more)


def held(engine: Engine) -> dict[str, int]:
    """What every version holds, those left out that hold nothing."""
    versions = [version for record in engine.models for version in engine.models.ready_versions(record.name)]
    return {version.name: version.held for version in versions if version.held}


def values(reply: Awaited) -> list[int]:
    (tensor,) = reply.response.outputs
    return [int(value) for value in array_of(tensor).reshape(-1)]


async def fine(engine: Engine, query: port.Query[None]) -> None:
    answer = await ask(engine, query)
    assert not isinstance(answer, Error), answer


async def asked(engine: Engine, query: port.Query[None]) -> Error | None:
    return await ask(engine, query)


def touch(root: Path, model: str, change: Callable[[str], str] = lambda text: text) -> None:
    """Its configuration is written anew, later than before."""
    path = root / model / "config.pbtxt"
    later = path.stat().st_mtime + 10
    path.write_text(change(path.read_text()))
    os.utime(path, (later, later))


def test_ensemble_is_loaded_after_its_members_and_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"0e": CHAIN.replace("m", "m"), **MODELS})) as engine:
            for model in ("0e", "e"):
                reply = await infer(engine, request_of(1, 2, model=model))
                assert values(reply) == [1, 2]
                assert reply.response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
            assert held(engine) == {}

    run(scenario)


def test_response_is_the_memory_of_the_request(tmp_path: Path) -> None:
    """An identity model answers with what it was given: nothing is copied in between."""

    async def scenario() -> None:
        async with running(options_for(tmp_path, MODELS)) as engine:
            request = request_of(5, model="e")
            reply = await infer(engine, request)
            assert reply.response.outputs[0].memory.host().obj is request.inputs["INPUT0"].memory.host().obj

    run(scenario)


def test_steps_of_several_requests_share_a_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {**MODELS, "b": HELD})) as engine:
            replies = await asyncio.gather(*(infer(engine, request_of(i, model="e")) for i in range(2)))
            assert [values(reply) for reply in replies] == [[0], [1]]
            (counts,) = await _counts(engine, "b")
            assert (counts.inference_count, counts.execution_count) == (2, 1)

    run(scenario)


async def _counts(engine: Engine, model: str) -> list[port.ModelCounts]:
    answer = await ask(engine, port.ModelStatistics(model))
    assert not isinstance(answer, Error)
    return answer


def test_client_that_leaves_takes_the_step_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {**MODELS, "b": HELD})) as engine:
            reply = Awaited()
            key = engine.infer(request_of(1, model="e"), reply)
            while held(engine) != {"a": 1, "b": 2, "e": 1}:  # both for the request, and one for the step
                await asyncio.sleep(0)
            engine.cancel(key)
            await reply.answered()
            assert isinstance(reply.error, Cancelled)
            assert held(engine) == {}

    run(scenario)


@pytest.mark.rows("S95")
def test_unloaded_member_finishes_requests_that_have_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, {**MODELS, "a": HELD}, load_models=("e",))) as engine:
            first, second = Awaited(), Awaited()
            engine.infer(request_of(1, model="e"), first)
            await fine(engine, port.UnloadModel("b"))
            late = await infer(engine, request_of(1, model="e"))
            assert isinstance(late.error, NotFound)
            engine.infer(request_of(2, model="a"), second)  # the step's company
            assert values(await first.answered()) == [1]
            assert values(await second.answered()) == [2]
            assert held(engine) == {}

    run(scenario)


@pytest.mark.rows("S83", "R16")
def test_ensemble_follows_its_members(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, {**MODELS, "top": CHAIN.replace('"a"', '"e"')})) as engine:
            await fine(engine, port.LoadModel("top"))
            for name in ("a", "e", "b"):
                await fine(engine, port.UnloadModel(name))
                assert isinstance((await infer(engine, request_of(1, model="top"))).error, NotFound)
                await fine(engine, port.LoadModel(name))
                assert values(await infer(engine, request_of(1, model="top"))) == [1]

    run(scenario)


@pytest.mark.rows("S83")
def test_member_that_does_not_fit_any_more_takes_the_ensemble_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, MODELS, load_models=("e",))) as engine:
            touch(tmp_path, "b", lambda text: text.replace("INT32", "FP32"))
            await fine(engine, port.LoadModel("b"))
            assert isinstance((await infer(engine, request_of(1, model="e"))).error, NotFound)
            touch(tmp_path, "b", lambda text: text.replace("FP32", "INT32"))
            await fine(engine, port.LoadModel("b"))
            assert values(await infer(engine, request_of(1, model="e"))) == [1]

    run(scenario)


@pytest.mark.rows("S83", "R10")
def test_load_of_an_ensemble_looks_at_its_members_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, MODELS, load_models=("e",))) as engine:
            before = engine.models.find("a", -1)
            await fine(engine, port.LoadModel("e"))
            assert engine.models.find("a", -1) is before
            ensemble = engine.models.find("e", -1)
            touch(tmp_path, "a", lambda text: text.replace("max_batch_size: 4", "max_batch_size: 8"))
            await fine(engine, port.LoadModel("e"))
            assert engine.models.find("a", -1).config.max_batch_size == 8
            assert engine.models.find("e", -1) is not ensemble

    run(scenario)


@pytest.mark.rows("R15")
def test_unload_with_dependents_unloads_members_that_nothing_else_needs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, {**MODELS, "f": CHAIN.replace('"b"', '"c"'), "c": IDENTITY})) as engine:
            for name in ("e", "f", "b"):
                await fine(engine, port.LoadModel(name))
            await fine(engine, port.UnloadModel("e", dependents=True))
            assert _ready(engine) == {"a", "b", "c", "f"}, "another needs 'a', and 'b' was asked for"
            await fine(engine, port.UnloadModel("f", dependents=True))
            assert _ready(engine) == {"b"}

    run(scenario)


async def index_of(engine: Engine, name: str) -> list[tuple[str, str]]:
    """The states of a model in the repository index, with their reasons."""
    found = await ask(engine, port.RepositoryIndex())
    assert not isinstance(found, Error)
    return [(entry.state, entry.reason) for entry in found if entry.name == name]


def test_index_has_the_reason_why_an_ensemble_could_not_be_loaded_at_the_start(tmp_path: Path) -> None:
    wrong = CHAIN.replace('input_map { key: "INPUT0" value: "x" }', 'input_map { key: "INPUT1" value: "x" }')
    models = {**MODELS, "e": wrong}
    reason = "Invalid argument: in ensemble e, ensemble tensor x is mapping to non-existing input INPUT1 in model b"

    async def scenario() -> None:
        async with running(options_for(tmp_path, models, exit_on_error=False)) as engine:
            assert await index_of(engine, "e") == [("UNAVAILABLE", reason)]
            assert await ask(engine, port.ServerReady()) is True, "as in Triton"

    run(scenario)


def _ready(engine: Engine) -> set[str]:
    return {record.name for record in engine.models if engine.models.ready_versions(record.name)}


@pytest.mark.rows("S83")
def test_circle_of_ensembles_is_refused_in_the_words_of_triton(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    circle = {name: ensemble((other, "INPUT0", "OUTPUT0")) for name, other in (("e", "f"), ("f", "g"), ("g", "e"))}

    async def scenario() -> None:
        async with running(explicit(tmp_path, circle)) as engine:
            for name in "efg":
                await asked(engine, port.LoadModel(name))
            text = str(await asked(engine, port.LoadModel("e")))
            words = "circular dependency between ensembles: e -> ... -> g -> e"
            assert text == f"load failed for model 'e': {words}\n"
            assert "ensemble 'e' contains itself: e -> f -> g -> e; remove one of these steps" in caplog.text

    run(scenario)


def test_circle_of_ensembles_is_refused_and_nothing_hangs(tmp_path: Path) -> None:
    circle = {name: ensemble((other, "INPUT0", "OUTPUT0")) for name, other in (("e", "f"), ("f", "g"), ("g", "e"))}

    async def scenario() -> None:
        async with running(explicit(tmp_path, {**circle, "a": IDENTITY})) as engine:
            answers = await asyncio.gather(*(asked(engine, port.LoadModel(name)) for name in ("e", "f", "g", "a")))
            texts = [str(answer) for answer in answers[:3]]
            assert all("circular dependency between ensembles: " in text for text in texts), texts
            assert answers[3] is None
            assert _ready(engine) == {"a"}

    run(scenario)


def test_member_is_loaded_once_however_many_ask(tmp_path: Path) -> None:
    async def scenario() -> None:
        models = {**MODELS, **{f"e{i}": CHAIN for i in range(5)}}
        async with running(explicit(tmp_path, models)) as engine:
            answers = await asyncio.gather(*(asked(engine, port.LoadModel(f"e{i}")) for i in range(5)))
            assert answers == [None] * 5
            assert values(await infer(engine, request_of(1, model="e4"))) == [1]

    run(scenario)


@pytest.mark.rows("H82")
def test_labels_come_from_the_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        labelled = IDENTITY.replace("dims: [ -1 ] }\ninstance", 'dims: [ -1 ] label_filename: "l.txt" }\ninstance')
        options = options_for(tmp_path, {**MODELS, "b": labelled})
        (tmp_path / "b" / "l.txt").write_text("zero\none\n")
        async with running(options) as engine:
            labels = engine.models.find("e", -1).loaded.labels
            assert {name: list(lines) for name, lines in labels.items()} == {"OUTPUT0": ["zero", "one"]}

    run(scenario)


@pytest.mark.rows("S91")
def test_statistics_of_ensemble_and_members(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, MODELS)) as engine:
            await infer(engine, request_of(1, 2, model="e", rows=3))
            (counts,) = await _counts(engine, "e")
            assert (counts.inference_count, counts.execution_count) == (3, 1)
            assert [batch.batch_size for batch in counts.batches] == [3]
            assert counts.inference["success"].count == counts.inference["queue"].count == 1
            parts = [(await _counts(engine, name))[0].inference["compute_infer"].ns for name in ("a", "b")]
            assert counts.inference["compute_infer"].ns == sum(parts)

    run(scenario)


@pytest.mark.rows("S93")
def test_response_of_an_ensemble_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        models = {**MODELS, "e": ensemble(("a", "INPUT0", "OUTPUT0"), more="response_cache { enable: true }")}
        options = options_for(tmp_path, models, cache_config={"local": {"size": "1048576"}})
        async with running(options) as engine:
            for _ in range(3):
                assert values(await infer(engine, request_of(1, model="e"))) == [1]
            (counts,) = await _counts(engine, "e")
            assert (counts.inference["cache_hit"].count, counts.inference["cache_miss"].count) == (2, 1)
            (counts,) = await _counts(engine, "a")
            assert counts.inference["success"].count == 1

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_held_after_a_storm(tmp_path: Path, seed: int) -> None:
    """Requests, clients that leave, and members that come and go, at any moment: one final answer each, and at the end
    nobody holds anything."""
    dice = random.Random(seed)

    async def scenario() -> None:
        diamond = ensemble(
            ("a", "INPUT0", "x"), ("e", "x", "y"), ("b", "y", "OUTPUT0"), sched="max_inflight_requests: 3"
        )
        models = {**MODELS, "b": HELD.replace("10000000", "100"), "top": diamond}
        async with running(explicit(tmp_path, models, load_models=("top",))) as engine:
            replies, control = [], []
            for i in range(300):
                reply = Awaited()
                key = engine.infer(request_of(i, model=dice.choice(("e", "top"))), reply)
                replies.append((i, reply))
                if dice.random() < 0.3:
                    engine.cancel(key)
                if dice.random() < 0.1:
                    await asyncio.sleep(0)
                if i % 60 == 30:
                    name = dice.choice(("a", "b", "e"))
                    control.append(asyncio.ensure_future(asked(engine, port.UnloadModel(name))))
                    control.append(asyncio.ensure_future(asked(engine, port.LoadModel(name))))
            await asyncio.gather(*control)
            for i, reply in replies:
                await reply.answered()
                assert reply.finals == 1
                assert isinstance(reply.only, Error) or values(reply) == [i]
            assert held(engine) == {}
            assert any(isinstance(reply.only, InferResponse) for _, reply in replies)

    run(scenario)


@pytest.mark.rows("M11")
def test_ensemble_has_no_load_duration(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, MODELS)) as engine:
            families = await ask(engine, port.Metrics())
            assert not isinstance(families, Error)
            (loads,) = [family for family in families if family.name == "nv_model_load_duration_secs"]
            assert {labels["model"] for labels, _ in loads.series} == {"a", "b"}

    run(scenario)
