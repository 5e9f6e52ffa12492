"""The routes of shared memory: what each asks of the engine, and what it answers."""

import json

import pytest

from halimede.engine_port import (
    MEMORY_DISABLED,
    CudaMemoryStatus,
    CudaRegion,
    RegionKind,
    RegisterCudaMemory,
    RegisterSystemMemory,
    SystemMemoryStatus,
    SystemRegion,
    UnregisterMemory,
)
from halimede.errors import AlreadyExists, Internal, Invalid, NotFound, Unsupported
from halimede.front.http.handling import JSON, MAX_WRITTEN_ON_LOOP, OFFLOAD_BYTES
from halimede.front.http.service import HttpService
from tests.front.fakes import FakePort
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, HeldOffload, Rig

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
REGISTER = RegisterSystemMemory("r", "/k", 0, 8)
BODY = b'{"key":"/k","byte_size":8}'


def test_status_of_many_regions_is_written_off_the_loop() -> None:
    regions = [SystemRegion(f"r{number}", "/k", 0, 8) for number in range(MAX_WRITTEN_ON_LOOP + 1)]
    rig = Rig()
    rig.port.answers = {SystemMemoryStatus(): regions}
    exchange = rig.ask("GET", SYSTEM + "/status")
    assert not exchange.answers
    rig.offload.run()
    assert len(json.loads(exchange.body_sent)) == len(regions)


def test_status_of_all_and_of_one() -> None:
    rig = Rig()
    rig.port.answers = {
        SystemMemoryStatus(): [SystemRegion("a", "/k", 0, 8)],
        SystemMemoryStatus("r%20"): [],
        CudaMemoryStatus(): [CudaRegion("c", 0, 8)],
        CudaMemoryStatus("r"): [],
    }
    written = b'[{"name":"a","key":"/k","offset":0,"byte_size":8}]'
    assert rig.ask("GET", SYSTEM + "/status").answer == (200, JSON, written)
    assert rig.ask("GET", SYSTEM + "/region/r%20/status").answer == (200, JSON, b"[]")
    assert rig.ask("GET", CUDA + "/status").answer == (200, JSON, b'[{"name":"c","device_id":0,"byte_size":8}]')
    assert rig.ask("GET", CUDA + "/region/r/status").answer == (200, JSON, b"[]")


def test_registering_and_unregistering() -> None:
    rig = Rig()
    handle = "AAAA" * 21 + "AA=="
    queries = {
        REGISTER: (SYSTEM + "/region/r/register", BODY),
        RegisterCudaMemory("r", bytes(64), 1, 8): (
            CUDA + "/region/r/register",
            b'{"raw_handle":{"b64":"%b"},"device_id":1,"byte_size":8}' % handle.encode(),
        ),
        UnregisterMemory(RegionKind.SYSTEM, "r"): (SYSTEM + "/region/r/unregister", b""),
        UnregisterMemory(RegionKind.SYSTEM): (SYSTEM + "/unregister", b"whatever"),
        UnregisterMemory(RegionKind.CUDA, "r"): (CUDA + "/region/r/unregister", b""),
        UnregisterMemory(RegionKind.CUDA): (CUDA + "/unregister", b""),
    }
    for query, (path, body) in queries.items():
        rig.port.answers = {query: None}
        assert rig.ask("POST", path, body).answer == (200, JSON, b"")


@pytest.mark.parametrize(
    ("error", "status"), [(AlreadyExists("x"), 400), (Internal("x"), 500), (Invalid("x"), 400), (Unsupported("x"), 501)]
)
def test_registration_that_the_engine_refuses(error: Exception, status: int) -> None:
    rig = Rig()
    rig.port.answers = {REGISTER: error}
    assert rig.ask("POST", SYSTEM + "/region/r/register", BODY).answer == (status, JSON, b'{"error":"x"}')


def test_status_that_the_engine_refuses() -> None:
    rig = Rig()
    rig.port.answers = {SystemMemoryStatus("r"): NotFound("x")}
    assert rig.ask("GET", SYSTEM + "/region/r/status").answer == (404, JSON, b'{"error":"x"}')


def test_malformed_registration_does_not_reach_the_engine() -> None:
    answer = Rig().ask("POST", SYSTEM + "/region/r/register", b"{}").answer
    assert answer == (400, JSON, b'{"error":"Shared memory register request has no \'key\' field"}')


@pytest.mark.parametrize("path", [SYSTEM, CUDA])
@pytest.mark.parametrize("what", ["region/r/register", "register", "region/r/unregister", "unregister"])
def test_body_is_ignored_if_nothing_may_be_registered(path: str, what: str) -> None:
    """The body is malformed, and the answer does not say so (H90)."""
    exchange = FakeExchange("POST", f"{path}/{what}", b"{")
    HttpService(FakePort(), HeldOffload(), MAX_INPUT_SIZE, client_memory=False).handle(exchange)
    assert exchange.answer == (501, JSON, b'{"error":"%b"}' % MEMORY_DISABLED.encode())


@pytest.mark.parametrize("path", [SYSTEM, CUDA])
def test_large_registration_is_offloaded_and_one_over_the_limit_is_refused(path: str) -> None:
    """The limit of JSON applies to registrations too (H17)."""
    rig = Rig()
    exchange = rig.ask("POST", path + "/region/r/register", b" " * (MAX_INPUT_SIZE + 1))
    assert (exchange.answers, len(rig.offload)) == ([], 1)
    rig.offload.run()
    assert exchange.status == 400
    assert b"exceeds the maximum allowed input size" in exchange.body_sent


def test_large_registration_is_done() -> None:
    rig = Rig()
    rig.port.answers = {REGISTER: None}
    exchange = rig.ask("POST", SYSTEM + "/region/r/register", BODY + b" " * OFFLOAD_BYTES)
    rig.offload.run()
    assert exchange.answer == (200, JSON, b"")


@pytest.mark.parametrize("path", [SYSTEM, CUDA])
def test_methods(path: str) -> None:
    refused = (405, JSON, b'{"error":"Method Not Allowed"}')
    assert Rig().ask("POST", path + "/status").answer == refused
    for what in ("register", "unregister"):
        assert Rig().ask("GET", f"{path}/region/r/{what}").answer == refused
        assert Rig().ask("DELETE", f"{path}/{what}").answer == refused


@pytest.mark.parametrize("tail", ["", "/", "/region/r", "/region//status", "/region/r/s/status", "/status/"])
def test_path_beside_the_routes(tail: str) -> None:
    assert Rig().ask("GET", SYSTEM + tail).answer[0] == 404
