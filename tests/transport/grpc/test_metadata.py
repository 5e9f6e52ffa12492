"""Metadata of gRPC calls: text, bytes, keys that repeat, and how much of it a client may send."""

from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.transport.grpc.heads import HeadCompiler, Refusal
from halimede.transport.http2.headers import RequestHead
from tests.transport.grpc_fakes import Echo, chat, error_of, run, served, unary

Pairs = Sequence[tuple[str, str | bytes]]

LISTS: list[Pairs] = [
    (),
    (("key", "value"),),
    (("key", ""), ("other", " a b ".strip()), ("x-1.2_3", "!#$%&'*+-.^_`|~,;=\"")),
    (("key", "1"), ("other", "2"), ("key", "3"), ("key", "1")),
    (("a-bin", b""),),
    (("a-bin", bytes(range(256))), ("b-bin", b"\0"), ("c-bin", b"\xff\xff"), ("d-bin", b"abc")),
    (("a-bin", b"1"), ("a-bin", b",,"), ("a-bin", b""), ("a-bin", b"="), ("a", "1")),
    tuple((f"key{n}", f"value {n}") for n in range(200)),
    tuple((f"key{n % 7}-bin", bytes([n]) * n) for n in range(100)),
]


def own(metadata: Pairs) -> dict[str, list[str | bytes]]:
    """The values of each key, in order (grpcio sends those of one key together), without what grpcio adds."""
    found: dict[str, list[str | bytes]] = {}
    for key, value in metadata:
        if key != "user-agent":
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("metadata", LISTS, ids=range(len(LISTS)))
def test_metadata_reach_the_service(metadata: Pairs) -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            for _ in range(2):  # the second time from the header tables
                await unary(channel, "/t/Echo", b"", metadata=metadata)
                call = chat(channel, metadata=metadata)
                await call.write(b"")
                await call.read()
                for seen in (echo.calls[-1].metadata, echo.streams[-1].call.metadata):
                    assert own(seen) == own(metadata)
                call.cancel()

    run(test)


def test_metadata_are_not_what_belongs_to_the_protocol() -> None:
    """Pseudo-headers and the fields that say how to read the call are no metadata."""

    async def test() -> None:
        async with served(echo := Echo(), compression=grpc.Compression.Gzip) as channel:
            await unary(channel, "/t/Echo", b"", metadata=(("key", "value"),))
            assert {key for key, _ in echo.calls[0].metadata} == {"user-agent", "key"}

    run(test)


@pytest.mark.parametrize("kilobytes", [1, 8, 15])
def test_metadata_of_a_size_that_is_taken(kilobytes: int) -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            value = "v" * kilobytes * 1000
            for _ in range(3):
                await unary(channel, "/t/Echo", b"", metadata=(("key", value),))
                assert ("key", value) in echo.calls[-1].metadata

    run(test)


@pytest.mark.parametrize("count", [17, 40, 60])
@pytest.mark.parametrize("size", [1000, None], ids=["many", "one"])
def test_metadata_that_are_too_large_end_their_call_alone(size: int | None, count: int) -> None:
    """gRPC's own servers refuse more than 16 KiB too."""
    metadata = [(f"key{n}", "v" * 1000) for n in range(count)] if size else [("key", "v" * 1000 * count)]
    refused = (grpc.StatusCode.RESOURCE_EXHAUSTED, "received metadata size exceeds limit")

    async def test() -> None:
        async with served(echo := Echo()) as channel:
            other = chat(channel)
            await other.write(b"1")
            assert await other.read() == b"1"
            assert await error_of(unary(channel, "/t/Echo", b"", metadata=metadata)) == refused
            assert echo.calls == []
            await other.write(b"2")
            assert await other.read() == b"2"
            other.cancel()

    run(test)


def test_metadata_beyond_the_limit_ends_the_connection_and_the_client_reconnects() -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            code, _ = await error_of(unary(channel, "/t/Echo", b"", metadata=(("key", "v" * 200_000),)))
            assert code is grpc.StatusCode.UNAVAILABLE
            assert await unary(channel, "/t/Echo", b"x", wait_for_ready=True) == b"<x>"

    run(test)


# What grpcio does not send


def _head(*fields: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(b"POST", b"/t/Echo", ((b"content-type", b"application/grpc"), *fields), None, 0, False)


def test_metadata_of_bytes_that_a_proxy_has_joined() -> None:
    head = HeadCompiler(Echo().rpcs(), "none").compile(_head((b"a-bin", b"AAE=,Ag,"), (b"a", b"1,2")))
    assert head.metadata == (("a-bin", b"\0\1"), ("a-bin", b"\2"), ("a-bin", b""), ("a", "1,2"))


def test_metadata_of_joined_bytes_count_as_separate_fields() -> None:
    """Each value counts 32 bytes of the header list, because an index of one byte may stand for thousands of values."""
    compiler = HeadCompiler(Echo().rpcs(), "none")
    taken = compiler.compile(_head((b"a-bin", b"," * 400)))
    assert (len(taken.metadata), taken.refusal) == (401, None)
    for fields in ([(b"a-bin", b"," * 600)], [(b"a-bin", b"," * 300)] * 2):
        refused = compiler.compile(_head(*fields))
        assert refused.refusal == Refusal(200, 8, "received metadata size exceeds limit")


def test_metadata_are_not_looked_at_where_no_call_begins() -> None:
    compiler = HeadCompiler(Echo().rpcs(), "none")
    head = _head((b"a-bin", b"!"))
    assert compiler.compile(head).refusal == Refusal(200, 13, "Error parsing 'a-bin' metadata: illegal base64 encoding")
    assert compiler.compile(replace(head, path=b"/t/Nowhere")).refusal == Refusal(200, 12)
    assert compiler.compile(replace(head, malformed=True)).refusal is None


def test_remembered_heads_begin_a_call_and_are_no_larger_than_their_fields() -> None:
    compiler = HeadCompiler(Echo().rpcs(), "none")
    head = _head((b"key", b"value"))
    assert compiler.compile(head).is_cacheable
    others = [_head((b"a-bin", b"")), replace(head, path=b"/t/Nowhere"), replace(head, malformed=True)]
    assert not any(compiler.compile(other).is_cacheable for other in others)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_metadata_of_any_bytes_are_read_or_refused(value: bytes) -> None:
    """Invalid base64 refuses the call, and invalid UTF-8 is replaced. No exception is raised."""
    compiler = HeadCompiler(Echo().rpcs(), "none")
    binary, text = compiler.compile(_head((b"a-bin", value))), compiler.compile(_head((b"a", value)))
    assert text.refusal is None
    assert text.metadata == (("a", value.decode("utf-8", "replace")),)
    if binary.refusal is None:
        assert all(isinstance(part, bytes) for _, part in binary.metadata)
    else:
        assert (binary.refusal.code, binary.metadata) == (13, ())
