"""The engine with the real identity backend. What goes through its port goes through it twice: directly, and through a
port that hands every message over as bytes a turn later."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede import __version__
from halimede import engine_port as port
from halimede.backends.api import Batch, Responses
from halimede.engine.answers import EXTENSIONS
from halimede.engine.engine import Engine
from halimede.engine_port import EnginePort
from halimede.errors import Cancelled, DecoupledModel, Error, Invalid, NotFound, Unavailable
from halimede.models.lifecycle import VersionState
from halimede.options import ServerOptions
from halimede.requests import InferRequest
from halimede.tensors import INT32, Tensor, array_of
from tests.engine.engines import (
    HELD,
    IDENTITY,
    STOP_SECONDS,
    Awaited,
    ask,
    infer,
    options_for,
    request_of,
    run,
    running,
)
from tests.fakes import SerializingPort, UnreachableMemory

EngineAccess = Callable[[Engine], EnginePort]


@pytest.fixture(params=["direct", "serialised"])
def access(request: pytest.FixtureRequest) -> EngineAccess:
    """How a front end reaches the engine."""
    if request.param == "direct":
        return lambda engine: engine
    return lambda engine: SerializingPort(engine, asyncio.get_running_loop())


def states(engine: Engine, name: str) -> dict[int, tuple[VersionState, str]]:
    record = engine.models.get(name)
    assert record is not None
    return {number: (one.state, one.reason) for number, one in record.versions.items()}


async def taken(engine: Engine, number: int) -> None:
    """Once so many inferences wait in the engine's only model, or have succeeded there; `run` bounds the wait."""
    names = {"nv_inference_pending_request_count", "nv_inference_request_success"}
    while number != sum(
        value for family in await expect(engine, port.Metrics()) if family.name in names for _, value in family.series
    ):
        await asyncio.sleep(0)


async def exiting(engine: Engine) -> None:
    """Once the engine refuses; `run` bounds the wait."""
    refused: bool | Error = False
    while not isinstance(refused, Unavailable):
        await asyncio.sleep(0)
        refused = await ask(engine, port.ServerLive())


# Inference.


async def inline_executions(engine: Engine) -> float:
    counts = {family.name: family.series for family in await expect(engine, port.Metrics())}
    [(labels, value)] = counts["halimede_inline_executions_total"]
    assert labels == {"model": "m", "version": "1"}
    return float(value)


def test_engine_runs_a_quick_model_on_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            while not await inline_executions(engine):  # `run` bounds it
                await infer(engine, request_of(1))

    run(scenario)


def test_engine_runs_no_model_on_the_loop_where_that_is_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY}, inline_execution=False)) as engine:
            for _ in range(200):
                await infer(engine, request_of(1))
            assert not await inline_executions(engine)

    run(scenario)


def test_engine_answers(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            response = (await infer(access(engine), request_of(1, 2, 3, rows=2))).response
            assert (response.id, response.model_name, response.model_version) == ("q", "m", 1)
            [output] = response.outputs
            assert (output.name, output.datatype, output.shape) == ("OUTPUT0", INT32, (2, 3))
            assert array_of(output).tolist() == [[1, 2, 3]] * 2

    run(scenario)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda r: setattr(r, "model_name", "no"), NotFound, "Request for unknown model: 'no' is not found"),
        (lambda r: setattr(r, "version", 9), NotFound, "Request for unknown model: 'm' version 9 is not found"),
        (lambda r: setattr(r, "outputs", ("Y",)), Invalid, "unexpected inference output 'Y' for model 'm'"),
        (lambda r: r.inputs.clear(), Invalid, "[request id: q] expected 1 inputs but got 0 inputs for model 'm'. "),
    ],
)
def test_engine_refuses_in_the_words_of_the_contract(
    tmp_path: Path, access: EngineAccess, change: Callable[[InferRequest], None], kind: type[Error], text: str
) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            request = request_of(1)
            change(request)
            error = (await infer(access(engine), request)).error
            assert type(error) is kind
            assert str(error).startswith(text)
            assert error.refused
            assert (await infer(access(engine), request_of(2))).response.id == "q"

    run(scenario)


def test_engine_refuses_a_decoupled_model_where_one_answer_is_wanted(tmp_path: Path, access: EngineAccess) -> None:
    decoupled = IDENTITY + "model_transaction_policy { decoupled: true }"

    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": decoupled})) as engine:
            through = access(engine)
            assert isinstance((await infer(through, request_of(1))).error, DecoupledModel)
            assert await ask(through, port.ModelTransaction("m")) is True
            request = request_of(1)
            request.decoupled_ok = True
            assert (await infer(through, request)).finals == 1

    run(scenario)


def test_engine_passes_memory_of_a_device_through_untouched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            memory = UnreachableMemory(16)
            request = request_of(1)
            request.inputs = {"INPUT0": Tensor("INPUT0", INT32, (2, 2), memory)}
            [output] = (await infer(engine, request)).response.outputs
            assert output.memory is memory

    run(scenario)


def test_engine_batches_what_comes_together(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": HELD})) as engine:
            through = access(engine)
            replies = [Awaited() for _ in range(8)]
            for i, reply in enumerate(replies):
                through.infer(request_of(i), reply)
            for i, reply in enumerate(replies):
                response = (await reply.answered()).response
                assert array_of(response.outputs[0]).tolist() == [[i]]
            [counts] = await expect(through, port.ModelStatistics("m"))
            assert (counts.inference_count, counts.execution_count) == (8, 2)
            assert [(batch.batch_size, batch.compute_infer.count) for batch in counts.batches] == [(4, 2)]

    run(scenario)


def test_engine_holds_requests_back_for_the_test_hook(tmp_path: Path) -> None:
    """Contract C60."""

    async def scenario() -> None:
        text = IDENTITY + "dynamic_batching { }"
        async with running(options_for(tmp_path, {"m": text}, delay_scheduler=3)) as engine:
            replies = [Awaited() for _ in range(3)]
            for reply in replies[:2]:
                engine.infer(request_of(1), reply)
            await taken(engine, 2)
            assert [reply.finals for reply in replies] == [0, 0, 0]
            engine.infer(request_of(1), replies[2])
            for reply in replies:
                await reply.answered()
            [counts] = await expect(engine, port.ModelStatistics("m"))
            assert counts.execution_count == 1

    run(scenario)


def test_engine_forgets_a_request_that_was_taken_back(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": HELD})) as engine:
            through = access(engine)
            reply = Awaited()
            key = through.infer(request_of(1), reply)
            through.cancel(key)
            assert isinstance((await reply.answered()).error, Cancelled)
            through.cancel(key)
            through.cancel(12345)
            [counts] = await expect(through, port.ModelStatistics("m"))
            assert (counts.inference["fail"].count, counts.execution_count) == (1, 0)

    run(scenario)


# Questions.


async def expect(through: EnginePort, query: port.Query[Any]) -> Any:
    answer = await ask(through, query)
    assert not isinstance(answer, Error), answer
    return answer


def test_engine_tells_what_it_is_and_what_it_has(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        options = options_for(tmp_path, {"m": IDENTITY, "n": IDENTITY}, server_id="here")
        async with running(options) as engine:
            through = access(engine)
            assert await ask(through, port.ServerLive()) is True
            assert await ask(through, port.ServerReady()) is True
            assert await ask(through, port.ModelReady("m")) is True
            assert await ask(through, port.ModelReady("m", 1)) is True
            assert await ask(through, port.ServerMetadata()) == port.ServerInfo("here", __version__, EXTENSIONS)
            assert await ask(through, port.ModelMetadata("m")) == port.ModelInfo(
                "m",
                (1,),
                "identity",
                (port.TensorInfo("INPUT0", INT32, (-1, -1)),),
                (port.TensorInfo("OUTPUT0", INT32, (-1, -1)),),
            )
            config = await expect(through, port.ModelConfiguration("m", 1))
            assert '"name":"m"' in config.json
            assert b"INPUT0" in config.message
            counts = await expect(through, port.ModelStatistics())
            assert [(one.name, one.version) for one in counts] == [("m", 1), ("n", 1)]
            metrics = await expect(through, port.Metrics())
            assert [dict(labels)["model"] for labels, _ in metrics[0].series] == ["m", "n"]

    run(scenario)


@pytest.mark.parametrize(
    ("query", "kind", "text"),
    [
        (port.ModelReady("no"), NotFound, "Request for unknown model: 'no' is not found"),
        (port.ModelReady("m", 3), NotFound, "Request for unknown model: 'm' version 3 is not found"),
        (port.ModelMetadata("no"), NotFound, "Request for unknown model: 'no' is not found"),
        (port.ModelConfiguration("m", 3), NotFound, "Request for unknown model: 'm' version 3 is not found"),
        (port.ModelTransaction("no"), NotFound, "Request for unknown model: 'no' is not found"),
        (port.ModelStatistics("no"), Invalid, "requested model 'no' is not available"),
        (port.ModelStatistics("m", 3), Invalid, "requested model version is not available for model 'm'"),
    ],
)
def test_engine_says_what_it_does_not_know(
    tmp_path: Path, access: EngineAccess, query: port.Query[Any], kind: type[Error], text: str
) -> None:
    """Contract H14, H120."""

    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            error = await ask(access(engine), query)
            assert type(error) is kind
            assert str(error) == text

    run(scenario)


def test_engine_answers_a_question_that_breaks(tmp_path: Path) -> None:
    class Unheard(port.Query[bool]):
        pass

    async def scenario() -> None:
        async with running(options_for(tmp_path, {})) as engine:
            answer = await ask(engine, Unheard())
            assert isinstance(answer, Error)

    run(scenario)


# Coming up.


def test_engine_comes_up_with_what_can_be_loaded(tmp_path: Path) -> None:
    broken = IDENTITY.replace("identity", "no_such_backend")

    async def scenario() -> None:
        engine = Engine(
            options_for(tmp_path, {"good": IDENTITY, "broken": broken, "nonsense": "x y z"}),
            asyncio.get_running_loop(),
        )
        assert await ask(engine, port.ServerReady()) is False
        assert await engine.start() is False
        assert states(engine, "good") == {1: (VersionState.READY, "")}
        [(state, reason)] = states(engine, "broken").values()
        assert state is VersionState.UNAVAILABLE
        assert reason.startswith("Invalid argument: unable to find backend library for backend 'no_such_backend'")
        nonsense = engine.models.get("nonsense")
        assert nonsense is not None
        assert nonsense.versions == {}
        assert "nonsense" in nonsense.reason
        assert await ask(engine, port.ServerReady()) is False
        assert await ask(engine, port.ModelReady("broken")) is False
        assert await ask(engine, port.ModelReady("broken", 1)) is False
        assert (await infer(engine, request_of(1, model="good"))).response.model_name == "good"
        error = (await infer(engine, request_of(1, model="broken", version=1))).error
        assert str(error) == "Request for unknown model: 'broken' version 1 is not at ready state"
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


@pytest.mark.parametrize(
    ("broken", "strict", "ready"),
    [
        ('backend: "nowhere"', True, False),
        ('backend: "nowhere"', False, True),
        (IDENTITY + "version_policy { specific { versions: 7 } }", True, False),
        ("x y z", True, True),
    ],
)
def test_engine_with_a_broken_model_is_ready_only_where_that_is_allowed(
    tmp_path: Path, broken: str, strict: bool, ready: bool
) -> None:
    """Contract H8; a model whose configuration cannot be read is none, as in the real server."""

    async def scenario() -> None:
        options = options_for(tmp_path, {"good": IDENTITY, "broken": broken}, strict_readiness=strict)
        async with running(options) as engine:
            assert await ask(engine, port.ServerReady()) is ready

    run(scenario)


class DeadInstance:
    """An instance whose process is gone."""

    healthy = False

    def execute(self, batch: Batch, responses: Responses) -> None:
        raise AssertionError("not asked to run anything")

    def close(self) -> None:
        """Nothing left to close."""


@pytest.mark.parametrize(("strict", "ready"), [(True, False), (False, True)])
def test_engine_with_a_dead_instance_says_which_version_is_not_ready(tmp_path: Path, strict: bool, ready: bool) -> None:
    """Contract P10, H8, H10."""

    async def scenario() -> None:
        (tmp_path / "m" / "2").mkdir(parents=True)
        config = IDENTITY + "version_policy { all { } }"
        options = options_for(tmp_path, {"m": config, "other": IDENTITY}, strict_readiness=strict)
        async with running(options) as engine:
            assert await ask(engine, port.ServerReady()) is True
            first, second = engine.models.ready_versions("m")
            first.instances[:] = [DeadInstance()]

            async def answers() -> list[object]:
                found: list[object] = []
                for name, number in (("m", 1), ("m", 2), ("m", -1), ("other", -1)):
                    answer = await ask(engine, port.ModelReady(name, number))
                    found.append(answer)
                return found

            assert await answers() == [False, True, True, True]
            assert await ask(engine, port.ServerReady()) is ready
            second.instances[:] = [DeadInstance()]
            assert await answers() == [False, False, False, True]
            assert await ask(engine, port.ServerLive()) is True

    run(scenario)


def test_engine_serves_neither_of_two_models_of_one_name(tmp_path: Path) -> None:
    """Contract R5."""

    async def scenario() -> None:
        one = options_for(tmp_path / "one", {"both": IDENTITY, "m": IDENTITY})
        other = options_for(tmp_path / "two", {"both": IDENTITY})
        options = ServerOptions(model_repositories=(*one.model_repositories, *other.model_repositories))
        engine = Engine(options, asyncio.get_running_loop())
        assert await engine.start() is False
        assert isinstance((await infer(engine, request_of(1, model="both"))).error, NotFound)
        assert (await infer(engine, request_of(1))).response.model_name == "m"
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


def test_engine_without_its_repository_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = ServerOptions(model_repositories=(str(tmp_path / "missing"),))
        engine = Engine(options, asyncio.get_running_loop())
        with pytest.raises(Invalid, match="repository path is not a valid directory"):
            await engine.start()
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


def test_engine_serves_several_versions(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_for(tmp_path, {"m": IDENTITY + "version_policy { all {} }"})
        for name in ("2", "10"):
            (tmp_path / "m" / name).mkdir()
        async with running(options) as engine:
            for version, answering in ((-1, 10), (1, 1), (2, 2), (10, 10)):
                response = (await infer(engine, request_of(1, version=version))).response
                assert response.model_version == answering
            facts = await expect(engine, port.ModelMetadata("m"))
            assert facts.versions == (1, 2, 10)
            counts = await expect(engine, port.ModelStatistics("m"))
            assert [(one.version, one.inference_count) for one in counts] == [(1, 1), (2, 1), (10, 2)]

    run(scenario)


def test_versions_that_do_not_all_come_into_service_leave_the_statistics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            await infer(engine, request_of(1))
            whole = engine.models.find("m", 1).loaded
            broken = replace(whole, number=2, config=replace(whole.config, outputs=None))  # type: ignore[arg-type]  # breaks
            with pytest.raises(TypeError):
                engine._make_serving([whole, broken])
            [counts] = await expect(engine, port.ModelStatistics("m"))
            assert counts.inference_count == 1

    run(scenario)


# Going down.


def test_stop_answers_what_was_taken_and_refuses_the_rest(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": HELD})) as engine:
            through = access(engine)
            replies = [Awaited() for _ in range(3)]
            for reply in replies:
                through.infer(request_of(1), reply)
            await taken(engine, 3)
            stopping = asyncio.ensure_future(engine.stop(STOP_SECONDS))
            await exiting(engine)
            late = (await infer(through, request_of(1))).error
            assert (type(late), str(late)) == (Unavailable, "Server exiting")
            live = await ask(through, port.ServerLive())
            ready = await ask(through, port.ServerReady())
            assert (type(live), type(ready)) == (Unavailable, Unavailable)
            assert await stopping
            assert [(await reply.answered()).response.id for reply in replies] == ["q"] * 3
            assert states(engine, "m") == {1: (VersionState.UNAVAILABLE, "unloaded")}

    run(scenario)


@pytest.mark.rows("H7", "L9")
def test_announced_exit_ends_health_and_not_inferences(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            engine.announce_exit()
            for question in (port.ServerLive(), port.ServerReady()):
                refused = await ask(engine, question)
                assert (type(refused), str(refused)) == (Unavailable, "Server exiting")
            assert (await infer(engine, request_of(1))).response.id == "q"

    run(scenario)


def test_announced_leave_ends_readiness_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            engine.announce_leave()
            refused = await ask(engine, port.ServerReady())
            assert (type(refused), str(refused)) == (Unavailable, "Server exiting")
            assert await ask(engine, port.ServerLive()) is True
            assert (await infer(engine, request_of(1))).response.id == "q"

    run(scenario)


@pytest.mark.rows("L9")
def test_stop_counts_down_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        text = IDENTITY + "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 4 ] }"
        async with running(options_for(tmp_path, {"m": text, "n": IDENTITY})) as engine:
            replies = [Awaited(), Awaited()]
            for reply in replies:
                engine.infer(request_of(1), reply)
            caplog.clear()
            assert await engine.stop(STOP_SECONDS)
            assert [(await reply.answered()).response.id for reply in replies] == ["q"] * 2

    caplog.set_level("INFO", "halimede.engine")
    run(scenario)
    lines = [record.getMessage() for record in caplog.records if record.name == "halimede.engine.engine"]
    left = f"Timeout {round(STOP_SECONDS)}: "
    assert lines[0] == "Waiting for in-flight requests to complete."
    assert lines[1] == left + "Found 1 model versions that have in-flight inferences"
    assert lines[2] == "Model 'm' (version 1) has 2 in-flight inferences"
    at = lines.index("All models are stopped, unloading models")
    assert lines[at - 1].endswith(": Found 0 model versions that have in-flight inferences")
    assert lines[at + 1].endswith(": Found 2 live models and 0 in-flight non-inference requests")
    assert lines[-1].endswith(": Found 0 live models and 0 in-flight non-inference requests")


def test_stop_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        text = IDENTITY + "dynamic_batching { }"
        async with running(options_for(tmp_path, {"m": text}, delay_scheduler=100)) as engine:
            reply = Awaited()
            engine.infer(request_of(1), reply)
            assert await engine.stop(0.02) is False
            assert reply.finals == 0

    run(scenario)


def test_stop_of_an_engine_that_never_started(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine(options_for(tmp_path, {"m": IDENTITY}), asyncio.get_running_loop())
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


def test_two_engines_in_one_process_do_not_meet(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = options_for(tmp_path / "one", {"m": IDENTITY, "only": IDENTITY}, server_id="one")
        two = options_for(tmp_path / "two", {"m": HELD}, server_id="two")
        async with running(one) as first, running(two) as second:
            replies = [Awaited() for _ in range(8)]
            for i, reply in enumerate(replies):
                (first, second)[i % 2].infer(request_of(i), reply)
            for i, reply in enumerate(replies):
                assert array_of((await reply.answered()).response.outputs[0]).tolist() == [[i]]
            for engine, executions in ((first, 4), (second, 1)):
                [counts] = await expect(engine, port.ModelStatistics("m"))
                assert (counts.inference_count, counts.execution_count) == (4, executions)
            assert isinstance((await infer(second, request_of(1, model="only"))).error, NotFound)
            assert await first.stop(STOP_SECONDS)
            assert isinstance((await infer(first, request_of(1))).error, Unavailable)
            assert (await infer(second, request_of(1))).response.model_name == "m"
            assert await ask(second, port.ServerLive()) is True

    run(scenario)


def test_name_of_no_model_has_a_similar_one(tmp_path: Path) -> None:
    async def compare() -> None:
        async with running(options_for(tmp_path, {"tokenizer": IDENTITY})) as engine:
            assert engine.similar_to("tokeniser") == ". Did you mean 'tokenizer'?"
            assert engine.similar_to("tokenizer") == engine.similar_to("other") == ""

    run(compare)
