"""The kinds of example clients that all four official clients have (`kinds.KINDS`)."""

import importlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from tests.compat.kinds import KINDS, ONE, ONES, SIXTEEN, Kinds, Spoken

GROWTH = 16 << 20
"""Bytes that allocators may keep after 1,000 requests of 200 kB, 200 MB in all."""


@pytest.fixture(params=["http", "grpc", "http.aio", "grpc.aio"])
def spoken(request: pytest.FixtureRequest, kinds: Kinds) -> Spoken:
    return Spoken(request.param, kinds.serving)


def test_table_of_kinds_names_tests_that_exist() -> None:
    for place in {test for tests in KINDS.values() for test in tests}:
        module, _, name = place.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.compat.{module}"), name, None)), place


def test_sum_and_difference(spoken: Spoken) -> None:
    """With both outputs requested, with none named, and with one; with an id, headers and other options."""
    given = [spoken.tensor("INPUT0", SIXTEEN, "INT32"), spoken.tensor("INPUT1", ONES, "INT32")]
    more = {} if spoken.is_grpc else {"query_params": {"test_1": 1, "test_2": "two words"}}

    async def ask(call: Any) -> None:
        for wanted in (spoken.wanted("OUTPUT0", "OUTPUT1"), None, spoken.wanted("OUTPUT1")):
            named = {"request_id": "1", "headers": {"test": "1"}, **more}
            result = await call("infer", "simple", given, outputs=wanted, **named)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - ONES)
            if wanted is None or len(wanted) == 2:
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)
            else:
                assert result.as_numpy("OUTPUT0") is None
            output = result.get_output("OUTPUT1")
            assert list(output.shape if spoken.is_grpc else output["shape"]) == [1, 16]

    spoken.ask(ask)


def as_json(spoken: Spoken) -> dict[str, bool]:
    return {"as_json": True} if spoken.is_grpc else {}


def test_numbers_as_text(spoken: Spoken) -> None:
    def text(array: Any) -> Any:
        return np.array([[str(number).encode() for number in row] for row in array], dtype=object)

    given = [spoken.tensor(f"INPUT{n}", text(array), "BYTES") for n, array in enumerate((SIXTEEN, ONES))]

    async def ask(call: Any) -> None:
        result = await call("infer", "simple_string", given, outputs=spoken.wanted("OUTPUT0", "OUTPUT1"))
        assert result.as_numpy("OUTPUT0").tolist() == text(SIXTEEN + ONES).tolist()
        assert result.as_numpy("OUTPUT1").tolist() == text(SIXTEEN - ONES).tolist()

    spoken.ask(ask)


def test_small_numbers_wrap(spoken: Spoken) -> None:
    most = np.full((1, 16), 127, np.int8)
    given = [spoken.tensor("INPUT0", most, "INT8"), spoken.tensor("INPUT1", ONES.astype(np.int8), "INT8")]

    async def ask(call: Any) -> None:
        result = await call("infer", "simple_int8", given)
        assert result.as_numpy("OUTPUT0").tolist() == [[-128] * 16]

    spoken.ask(ask)


@pytest.mark.rows("H119", "G6")
def test_health_metadata_and_statistics(spoken: Spoken) -> None:
    plain = as_json(spoken)

    async def ask(call: Any) -> None:
        headers = {"test": "1"}
        for question, named in (("is_server_live", ()), ("is_server_ready", ()), ("is_model_ready", ("simple",))):
            assert await call(question, *named, headers=headers) is True
        server = await call("get_server_metadata", headers=headers, **plain)
        assert server["name"] == "triton"
        model = await call("get_model_metadata", "simple", headers=headers, **plain)
        assert [one["name"] for one in model["inputs"] + model["outputs"]] == ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]
        config = await call("get_model_config", "simple", headers=headers, **plain)
        assert (config["config"] if plain else config)["max_batch_size"] == 8
        index = await call("get_model_repository_index", **plain)
        assert {"name": "repeat", "version": "1", "state": "READY"} in (index["models"] if plain else index)
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'wrong_name' is not found"):
            await call("get_model_metadata", "wrong_name")
        counts = [await count(call) for _ in range(2)]
        given = [spoken.tensor("INPUT0", SIXTEEN, "INT32"), spoken.tensor("INPUT1", ONES, "INT32")]
        for _ in range(3):
            await call("infer", "simple", given)
        assert counts[0] == counts[1]
        assert await count(call) == counts[0] + 3

    async def count(call: Any) -> int:
        said = await call("get_inference_statistics", "simple", **plain)
        return int(said["model_stats"][0]["inference_stats"]["success"].get("count", 0))

    spoken.ask(ask)


@pytest.mark.rows("H46", "G17")
def test_custom_parameters(spoken: Spoken) -> None:
    custom = {"text": "t", "whole": -1, "flag": True}

    async def ask(call: Any) -> None:
        given = [spoken.tensor("INPUT0", ONE, "INT32")]
        named = {"priority": 2, "timeout": 9_000_000, "parameters": custom, "headers": {"x-own": "y", "own": "z"}}
        result = await call("infer", "echo", given, **named)
        said = json.loads(result.as_numpy("OUTPUT0")[0])
        assert {key: said[key] for key in custom} == custom
        assert (said["x-own"], said["timeout"], "own" in said) == ("y", 9_000_000, False)

    spoken.ask(ask)


def test_basic_authentication(spoken: Spoken) -> None:
    """The plugin adds its header to every request. A model with forwarded headers sees it."""

    async def ask(call: Any) -> Any:
        result = await call("infer", "echo", [spoken.tensor("INPUT0", ONE, "INT32")])
        return json.loads(result.as_numpy("OUTPUT0")[0]).get("authorization")

    assert spoken.ask(ask, BasicAuth("username", "password")) == "Basic dXNlcm5hbWU6cGFzc3dvcmQ="
    assert spoken.ask(ask) is None


def test_objects_are_reused(spoken: Spoken) -> None:
    """The same inputs and outputs are used with data, in shared memory, and with data again."""
    given = [spoken.tensor("INPUT0", SIXTEEN, "INT32"), spoken.tensor("INPUT1", ONES, "INT32")]
    wanted = spoken.wanted("OUTPUT0", "OUTPUT1")
    name = f"halimede_kinds_{os.getpid()}_{uuid.uuid4().hex}"
    memory = shm.create_shared_memory_region(name, "/" + name, 256)

    async def ask(call: Any) -> None:
        async def check(one: Any, other: Any) -> None:
            result = await call("infer", "simple", given, outputs=wanted)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), one + other)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), one - other)

        await check(SIXTEEN, ONES)
        await call("register_system_shared_memory", name, "/" + name, 256)
        shm.set_shared_memory_region(memory, [SIXTEEN * 2, ONES * 3])
        for n in (0, 1):
            given[n].set_shared_memory(name, 64, 64 * n)
            wanted[n].set_shared_memory(name, 64, 128 + 64 * n)
        await call("infer", "simple", given, outputs=wanted)
        found = shm.get_contents_as_numpy(memory, np.int32, [2, 16], 128)
        np.testing.assert_array_equal(found, np.concatenate([SIXTEEN * 2 + 3, SIXTEEN * 2 - 3]))
        await call("unregister_system_shared_memory", name)
        for tensor, array in zip(given, (ONES * 4, ONES * 5), strict=True):
            tensor.set_data_from_numpy(array)
        for output in wanted:
            output.unset_shared_memory()
        await check(ONES * 4, ONES * 5)

    try:
        spoken.ask(ask)
    finally:
        shm.destroy_shared_memory_region(memory)


def test_memory_does_not_grow(spoken: Spoken) -> None:
    large = [spoken.tensor("INPUT0", np.zeros(50_000, np.int32), "INT32")]

    def resident() -> int:
        pages = Path(f"/proc/{spoken.serving.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def ask(call: Any) -> int:
        for _ in range(100):
            await call("infer", "echo", large)
        before = resident()
        for _ in range(1_000):
            await call("infer", "echo", large)
        return resident() - before

    assert spoken.ask(ask) < GROWTH
