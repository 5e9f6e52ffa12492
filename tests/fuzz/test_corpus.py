"""The inputs that the fuzzer has kept, replayed. `python -m tests.fuzz` looks for more."""

import pytest

from halimede.transport.http2 import huffman
from tests.fuzz import corpus, server, targets
from tests.fuzz.__main__ import GROUPS

TARGETS = {**targets.TARGETS, "server_http": server.server_http, "server_grpc": server.server_grpc}


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs_are_answered_well(target: str) -> None:
    inputs = corpus.read(target)
    assert inputs
    for each in inputs:
        try:
            TARGETS[target](each)
        except Exception as error:
            raise AssertionError(f"the input {each!r}") from error


def test_every_target_belongs_to_a_group_and_has_inputs() -> None:
    assert {name for names in GROUPS.values() for name in names} == TARGETS.keys()
    assert {file.stem for file in corpus.FOLDER.glob("*.txt")} == TARGETS.keys()


def test_target_fails_if_a_parser_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huffman, "decode", lambda data: b"")
    with pytest.raises(AssertionError):
        targets.huffman_code(b"\x07")
