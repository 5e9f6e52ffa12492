"""Models under a rate limiter come and go: what they need is checked when they load, and free when they are gone."""

from pathlib import Path
from typing import Any

import pytest

from halimede.engine.engine import Engine
from halimede.engine_port import IndexEntry, LoadModel, RepositoryIndex, UnloadModel
from halimede.errors import Error
from halimede.options import ServerOptions
from tests.engine.engines import IDENTITY, Awaited, ask, infer, options_for, request_of, run, running


def needing(count: int, more: str = "") -> str:
    limiter = f'rate_limiter {{ resources {{ name: "R" count: {count} {more} }} }}'
    return IDENTITY.replace("kind: KIND_CPU", f"kind: KIND_CPU {limiter}")


def explicit(root: Path, models: dict[str, str], **others: Any) -> ServerOptions:
    return options_for(root, models, model_control_mode="explicit", rate_limit=True, **others)


async def refusal(engine: Engine, model: str) -> str:
    answer = await ask(engine, LoadModel(model))
    assert isinstance(answer, Error)
    return str(answer)


async def reason(engine: Engine, model: str) -> str:
    entries = await ask(engine, RepositoryIndex())
    assert isinstance(entries, list)
    [entry] = [entry for entry in entries if isinstance(entry, IndexEntry) and entry.name == model]
    return f"{entry.state}: {entry.reason}"


LIMITED = (
    'Resource count for "R" is limited to 4 which will prevent scheduling of one or more model instances, the minimum '
    "required count is 5"
)


@pytest.mark.rows("S103")
def test_model_that_asks_for_more_than_there_is_does_not_load(tmp_path: Path) -> None:
    models = {"fits": needing(4), "large": needing(5)}

    async def scenario() -> None:
        async with running(explicit(tmp_path, models, rate_limit_resources={("R", -1): 4})) as engine:
            assert await ask(engine, LoadModel("fits")) is None
            text = f"load failed for model 'large': version 1 is at UNAVAILABLE state: Invalid argument: {LIMITED};\n"
            assert await refusal(engine, "large") == text
            assert await reason(engine, "large") == f"UNAVAILABLE: Invalid argument: {LIMITED}"
            reply = await infer(engine, request_of(7, model="fits"))
            assert reply.response.outputs

    run(scenario)


@pytest.mark.rows("S104")
def test_contradiction_goes_with_the_model_that_made_it(tmp_path: Path) -> None:
    models = {"one": needing(1), "all": needing(1, more="global: true")}

    async def scenario() -> None:
        async with running(explicit(tmp_path, models)) as engine:
            assert await ask(engine, LoadModel("one")) is None
            assert 'Resource "R" is present as both global and device-specific resource' in await refusal(engine, "all")
            assert await ask(engine, UnloadModel("one")) is None
            assert await ask(engine, LoadModel("all")) is None
            assert 'Resource "R" is present as both global and device-specific resource' in await refusal(engine, "one")

    run(scenario)


@pytest.mark.rows("S100")
def test_without_a_limiter_resources_mean_nothing(tmp_path: Path) -> None:
    both = needing(1, more="}, resources { name: 'R' global: true count: 9")

    async def scenario() -> None:
        options = options_for(tmp_path, {"m": both}, rate_limit_resources={("R", -1): 0})
        async with running(options) as engine:
            assert (await infer(engine, request_of(7))).response.outputs

    run(scenario)


def test_reload_and_unload_give_back_what_the_version_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = explicit(tmp_path, {"m": needing(1)}, rate_limit_resources={("R", -1): 1})
        async with running(options) as engine:
            for load in range(3):
                (tmp_path / "m" / "config.pbtxt").write_text(needing(1) + f"# {load}\n")
                assert await ask(engine, LoadModel("m")) is None
                assert (await infer(engine, request_of(7))).response.outputs
            assert await ask(engine, UnloadModel("m")) is None
            assert await ask(engine, LoadModel("m")) is None
            assert (await infer(engine, request_of(7))).response.outputs

    run(scenario)


def test_version_that_ends_keeps_its_resources_until_it_has_ended(tmp_path: Path) -> None:
    """The new one, which needs all there is, waits for the batch of the old one and no longer."""
    batching = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000 }"

    async def scenario() -> None:
        options = explicit(tmp_path, {"m": needing(1) + batching}, rate_limit_resources={("R", -1): 1})
        async with running(options) as engine:
            assert await ask(engine, LoadModel("m")) is None
            old = Awaited()
            engine.infer(request_of(1), old)
            (tmp_path / "m" / "config.pbtxt").write_text(needing(1))
            assert await ask(engine, LoadModel("m")) is None
            new = [await infer(engine, request_of(2)) for _ in range(3)]
            assert [len(reply.response.outputs) for reply in (await old.answered(), *new)] == [1] * 4

    run(scenario)
