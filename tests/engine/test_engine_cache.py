"""The response cache in a whole engine (contract K1 to K7, M15 to M17b)."""

from pathlib import Path

import numpy as np
import pytest

from halimede.engine.engine import Engine
from halimede.engine_port import (
    LoadModel,
    MetricFamily,
    Metrics,
    ModelStatistics,
    RegionKind,
    RegisterSystemMemory,
    UnloadModel,
    UnregisterMemory,
)
from halimede.errors import Invalid
from halimede.requests import InferRequest
from halimede.tensors import INT32, RegionReference, Tensor, array_of
from tests.engine.engines import IDENTITY, Awaited, ask, infer, options_for, request_of, run, running
from tests.segments import segment

CACHED = IDENTITY + "response_cache { enable: true }\n"
LOCAL = {"local": {"size": "1048576"}}
PAGE = 4096


async def counts(engine: Engine) -> tuple[int, int, int, int, int]:
    """Successes, hits, misses, inferences, executions."""
    answer = await ask(engine, ModelStatistics("m"))
    assert isinstance(answer, list)
    (one,) = answer
    phases = one.inference
    numbers = (phases[phase].count for phase in ("success", "cache_hit", "cache_miss"))
    success, hit, miss = numbers
    assert phases["compute_infer"].count == success - hit
    return success, hit, miss, one.inference_count, one.execution_count


def values_of(reply: Awaited) -> list[object]:
    values: list[object] = array_of(reply.response.outputs[0]).ravel().tolist()
    return values


def test_hit_is_counted_and_does_not_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": CACHED}, cache_config=LOCAL)) as engine:
            for _ in range(3):
                assert values_of(await infer(engine, request_of(1, 2))) == [1, 2]
            assert await counts(engine) == (3, 2, 1, 1, 1)
            assert values_of(await infer(engine, request_of(1, 3))) == [1, 3]
            assert await counts(engine) == (4, 2, 2, 2, 2)

    run(scenario)


@pytest.mark.parametrize(("text", "config"), [(CACHED, {}), (IDENTITY, LOCAL)], ids=["no cache", "not enabled"])
def test_without_both_settings_nothing_is_kept(tmp_path: Path, text: str, config: dict[str, dict[str, str]]) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": text}, cache_config=config)) as engine:
            for _ in range(2):
                await infer(engine, request_of(1))
            assert await counts(engine) == (2, 0, 0, 2, 2)

    run(scenario)


def test_model_that_is_loaded_again_answers_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_for(tmp_path, {"m": CACHED}, cache_config=LOCAL, model_control_mode="explicit")
        async with running(options) as engine:
            for _ in range(2):
                assert await ask(engine, LoadModel("m")) is None
                await infer(engine, request_of(1))
                assert await counts(engine) == (1, 0, 1, 1, 1)
                assert await ask(engine, UnloadModel("m")) is None

    run(scenario)


def test_classes_of_a_response_that_was_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": CACHED}, cache_config=LOCAL)) as engine:
            await infer(engine, request_of(5, 9, 3))
            classes = {}
            for number in (1, 2):
                request = request_of(5, 9, 3)
                request.classes, request.outputs = {"OUTPUT0": number}, ("OUTPUT0",)
                classes[number] = values_of(await infer(engine, request))
            assert classes == {1: [b"9:1"], 2: [b"9:1", b"5:0"]}
            assert values_of(await infer(engine, request_of(5, 9, 3))) == [5, 9, 3]
            assert await counts(engine) == (4, 3, 1, 1, 1)

    run(scenario)


def test_hits_keep_the_order_of_requests_where_that_is_promised(tmp_path: Path) -> None:
    ordered = CACHED + "dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 50000 }\n"

    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": ordered}, cache_config=LOCAL)) as engine:
            await infer(engine, request_of(1))
            slow, hit = Awaited(), Awaited()
            engine.infer(request_of(2), slow)
            engine.infer(request_of(1), hit)
            assert (slow.finals, hit.finals) == (0, 0), "the hit waits for its turn"
            await hit.answered()
            assert slow.finals == 1
            assert await counts(engine) == (3, 1, 2, 2, 2)

    run(scenario)


def in_region(output: RegionReference) -> InferRequest:
    request = InferRequest("m")
    request.inputs = {"INPUT0": Tensor("INPUT0", INT32, (1, 2), RegionReference("r", 0, 8))}
    request.in_regions, request.outputs, request.destinations = True, ("OUTPUT0",), {"OUTPUT0": output}
    return request


def test_hit_in_shared_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        with segment(2 * PAGE) as (key, memory):
            assert memory.buf is not None
            memory.buf[:8] = np.array([1, 2], np.int32).tobytes()
            async with running(
                options_for(tmp_path, {"m": CACHED}, cache_config=LOCAL, allow_client_shm=True)
            ) as engine:
                assert await ask(engine, RegisterSystemMemory("r", key, 0, 2 * PAGE)) is None
                for offset in (PAGE, PAGE + 64):
                    await infer(engine, in_region(RegionReference("r", offset, 64)))
                    assert bytes(memory.buf[offset : offset + 8]) == bytes(memory.buf[:8])
                assert await counts(engine) == (2, 1, 1, 1, 1)
                assert values_of(await infer(engine, request_of(1, 2))) == [1, 2], "the same question without memory"
                assert (await counts(engine))[1] == 2
                assert await ask(engine, UnregisterMemory(RegionKind.SYSTEM)) is None

    run(scenario)


def test_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": CACHED, "n": IDENTITY}, cache_config=LOCAL)) as engine:
            for _ in range(3):
                await infer(engine, request_of(1))
            answer = await ask(engine, Metrics())
            assert isinstance(answer, list)
            families: dict[str, MetricFamily] = {family.name: family for family in answer}
            labels = {"model": "m", "version": "1"}
            assert families["nv_cache_num_hits_per_model"].series == ((labels, 2.0),)
            assert families["nv_cache_num_misses_per_model"].series == ((labels, 1.0),)
            own = {name: family.series for name, family in families.items() if not name.endswith("_per_model")}
            for name, value in (("entries", 1.0), ("hits", 2.0), ("misses", 1.0), ("lookups", 3.0), ("evictions", 0.0)):
                assert own[f"nv_cache_num_{name}"] == (({}, value),)
            ((_, used),) = own["nv_cache_util"]
            assert isinstance(used, float)
            assert 0 < used < 0.001

    run(scenario)


def test_cache_that_makes_no_sense_is_refused_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(Invalid, match="config didn't contain a valid 'size' field"):
            async with running(options_for(tmp_path, {"m": CACHED}, cache_config={"local": {"x": "y"}})):
                raise AssertionError("it started")

    run(scenario)
