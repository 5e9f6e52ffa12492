"""`tools/corrupt.py` with a thousand corruptions of valid requests; and what it sends, and how it judges."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.ports import free_ports
from tools.corrupt import Findings, verdict
from tools.corrupt_corpus import Corpus, as_chunks
from tools.corrupt_mutations import fields, join_fields, varint
from tools.corrupt_peers import Seen, judge_grpc, judge_http, send_corruption
from tools.corrupt_requests import FAMILIES, Corruption, corruption
from tools.soak_grpc import SERVICE

ROOT = Path(__file__).resolve().parents[2]
COUNT, SEED = 1000, 1
LIMIT = 300
CORPUS = Corpus("/halimede_corrupt_abcdefgh")


def test_server_stands_a_thousand_corruptions() -> None:
    command = [sys.executable, "-m", "tools.corrupt", f"--count={COUNT}", f"--seed={SEED}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-3000:]}"
    assert done.stdout.startswith(f"seed {SEED}\n")
    assert done.stdout.rstrip().endswith("PASSED")


def test_corruption_of_a_seed_is_always_the_same() -> None:
    for number in range(200):
        again = corruption(7, number, Corpus(CORPUS.key))
        assert corruption(7, number, CORPUS) == again
        assert b"".join(again.pieces) == again.data
    assert len({corruption(7, number, CORPUS).data for number in range(200)}) > 190
    assert corruption(7, 0, CORPUS) != corruption(8, 0, CORPUS)


def test_corruptions_reach_every_family_route_and_call() -> None:
    corruptions = [corruption(1, number, CORPUS) for number in range(5000)]
    assert Counter(each.family for each in corruptions).keys() == FAMILIES.keys()
    assert {each.case for each in corruptions} == {case.name for case in CORPUS.cases}
    valid = {case.bytes for case in CORPUS.cases}
    assert sum(each.data in valid for each in corruptions) < len(corruptions) // 10


def test_every_call_of_the_service_is_among_the_valid_requests() -> None:
    known = {case.path for case in CORPUS.grpc}
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {f"{SERVICE}/{method.name}" for method in service.methods} <= known


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_fields_of_a_message_are_found_and_put_together(number: int) -> None:
    message = pb.ModelInferRequest(model_name="m" * 200, raw_input_contents=[b"", b"abc"])
    message.parameters["p"].uint64_param = number
    whole = message.SerializeToString()
    parts = fields(whole)
    assert parts is not None
    assert [part.number for part in parts] == [1, 4, 7, 7]
    assert join_fields(parts) == whole
    assert fields(whole[:-1]) is None
    assert pb.InferParameter.FromString(b"\x10" + varint(number)).int64_param == number - (number >> 63 << 64)


def test_body_in_chunks() -> None:
    assert as_chunks(b"0123456789") == b"2\r\n01\r\n2\r\n23\r\n2\r\n45\r\n2\r\n67\r\n2\r\n89\r\n0\r\n\r\n"


def a_corruption(protocol: str, whole: bool = True) -> Corruption:
    return Corruption(0, "http json" if protocol == "http" else "grpc fields", "a case", "", protocol, b"", whole)


def answer(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} Words\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("came", "problem"),
    [
        (answer(200, "anything"), ""),
        (answer(400, '{"error":"whatever it is"}'), ""),
        (answer(500, '{"error":"failed to parse the request JSON buffer: The document is empty. at 0"}'), ""),
        (answer(500, '{"error":"list index out of range"}'), "500 list index out of range"),
        (answer(200, "Traceback (most recent call last)"), "forbidden text"),
        (answer(503, ""), "503"),
        (answer(400, "no JSON"), "400 without an error"),
        (b"", "0 answers to one request"),
        (answer(200, "") * 2, "2 answers to one request"),
        (answer(200, "cut short")[:-1], "not an HTTP answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, ""), ""),
    ],
)
def test_http_answer_is_judged(came: bytes, problem: str) -> None:
    seen = Seen()
    judge_http(a_corruption("http"), came, seen)
    assert problem in seen.wrong
    assert bool(problem) == bool(seen.wrong)


@pytest.mark.parametrize(
    ("fields", "body", "problem"),
    [
        ({"grpc-status": "0"}, b"", ""),
        ({"grpc-status": "3", "grpc-message": "anything"}, b"", ""),
        ({"grpc-status": "13", "grpc-message": "Unable to parse request"}, b"", ""),
        ({"grpc-status": "13", "grpc-message": "internal error"}, b"", "forbidden text"),
        ({"grpc-status": "13", "grpc-message": "tuple%20index"}, b"", "gRPC status 13: tuple index"),
        ({"grpc-status": "0"}, b"Traceback", "forbidden text"),
        ({}, b"", "no status"),
    ],
)
def test_grpc_answer_is_judged(fields: dict[str, str], body: bytes, problem: str) -> None:
    seen = Seen()
    judge_grpc(a_corruption("grpc"), fields, body, None, seen)
    assert problem in seen.wrong
    assert bool(problem) == bool(seen.wrong)


def test_call_that_the_server_ended_as_its_own_fault() -> None:
    seen = Seen()
    judge_grpc(a_corruption("grpc"), {}, b"", 2, seen)
    assert seen.wrong == "ended with INTERNAL_ERROR"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_silence_is_told(protocol: str) -> None:
    """Of one who takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seen = asyncio.run(send_corruption(a_corruption(protocol), {protocol: silent.getsockname()[1]}, limit=0.1))
    assert seen.wrong.startswith("neither an answer nor an end within")
    seen = asyncio.run(send_corruption(a_corruption(protocol), {protocol: free_ports(1)[0]}))
    assert seen.wrong.startswith("no connection: ")


MIB = 1 << 20


def test_verdict_says_what_fell_short() -> None:
    fine = Findings(memory=[(250, 90 * MIB), (2250, 100 * MIB), (20_000, 110 * MIB)])
    assert verdict(fine, 24.0, 0, 0) == []
    grown = Findings(wrong=["a hang"], memory=[(250, 90 * MIB), (2250, 100 * MIB), (20_000, 130 * MIB)])
    assert verdict(grown, 24.0, 1, 2) == [
        "1 failures",
        "memory grew by 30.0 MiB",
        "exit status 1 after SIGTERM",
        "2 processes remain",
    ]
