"""The initial states of sequences: zeros, or the contents of a file (S68, S69)."""

from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from halimede.config import ModelConfig
from halimede.config.sequencing import DirectStrategy, SequenceBatching
from halimede.config.states import InitialState, StateSpec
from halimede.errors import Error, Internal, Invalid
from halimede.models.sequence_states import states_for
from halimede.scheduling.states import ModelStates
from halimede.tensors import BYTES, FP32, INT32, Tensor, array_of
from tests.models.configs import config_of, spec

FILED = StateSpec("SI", "SO", INT32, (2,), InitialState((2,), "start"))


def config_with(*states: StateSpec, max_batch_size: int = 0) -> ModelConfig:
    plain = config_of(spec("INPUT0", "INT32", [1]), max_batch_size=max_batch_size)
    return replace(plain, sequence_batching=SequenceBatching(DirectStrategy(), states=states))


def begun(states: ModelStates | None) -> dict[str, Tensor]:
    assert states is not None
    sequence = states.begin()
    assert sequence is not None
    return sequence.tensors


def write(folder: Path, data: bytes, name: str = "start") -> None:
    (folder / "initial_state").mkdir(exist_ok=True)
    (folder / "initial_state" / name).write_bytes(data)


def test_a_model_without_states_has_none(tmp_path: Path) -> None:
    assert states_for(config_of(spec("INPUT0", "INT32", [1])), tmp_path) is None
    assert states_for(config_with(), tmp_path) is None


@pytest.mark.parametrize(("max_batch_size", "lead"), [(0, ()), (8, (1,))])
def test_sequences_start_with_zeros(tmp_path: Path, max_batch_size: int, lead: tuple[int, ...]) -> None:
    config = config_with(
        StateSpec("a", "a2", FP32, (2, -1)),
        StateSpec("b", "b2", BYTES, (2,)),
        StateSpec("c", "c2", INT32, (-1,), InitialState((3,))),
        StateSpec("d", "d2", INT32, (-1,), InitialState((0,))),
        max_batch_size=max_batch_size,
    )
    tensors = begun(states_for(config, tmp_path))
    assert {name: (tensor.shape, array_of(tensor).tolist()) for name, tensor in tensors.items()} == {
        name: (lead + shape, [value] if lead else value)
        for name, shape, value in [
            ("a", (2, 1), [[0.0], [0.0]]),
            ("b", (2,), [b"", b""]),
            ("c", (3,), [0, 0, 0]),
            ("d", (0,), []),
        ]
    }


@pytest.mark.parametrize("data", [pack("<2i", 5, -7), pack("<3i", 5, -7, 9)], ids=["enough", "more than enough"])
def test_initial_state_from_a_file(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, data)
    assert array_of(begun(states_for(config_with(FILED), tmp_path))["SI"]).tolist() == [5, -7]


def test_initial_strings_from_a_file(tmp_path: Path) -> None:
    state = StateSpec("SI", "SO", BYTES, (2,), InitialState((2,), "/start"))
    write(tmp_path, b"\3\0\0\0abc\0\0\0\0")
    assert array_of(begun(states_for(config_with(state), tmp_path))["SI"]).tolist() == [b"abc", b""]
    write(tmp_path, b"\3\0\0\0abcdef")
    with pytest.raises(Invalid, match=r"^the initial state 'SI' of m from /start: incomplete string"):
        states_for(config_with(state), tmp_path)


def refusal(folder: Path, file: str) -> Error:
    with pytest.raises(Error) as caught:
        states_for(config_with(replace(FILED, initial=InitialState((2,), file))), folder)
    return caught.value


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write(folder, bytes(4), "short")
    (folder / "config.pbtxt").write_bytes(bytes(8))
    (tmp_path / "secret").write_bytes(bytes(8))
    words = "initial_state setting expects 8 bytes, but the data provided from shortonly has 4 bytes."
    assert (type(refusal(folder, "short")), refusal(folder, "short").message) == (Invalid, words)
    missing = refusal(folder, "none")
    path = folder / "initial_state" / "none"
    assert isinstance(missing, Internal)
    assert missing.message == f"failed to open text file for read {path}: No such file or directory"
    for file in ("../config.pbtxt", "../../secret", "a/../../config.pbtxt"):
        words = f"'data_file' must stay within the folder 'initial_state' for m, got '{file}'"
        assert refusal(folder, file).message == words
    assert refusal(folder, str(tmp_path / "secret")).message.endswith("secret: No such file or directory")
    assert refusal(folder, "").message.endswith("initial_state: Is a directory")


def test_growable_memory_needs_one_buffer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    growable = StateSpec("SI", "SO", INT32, (-1,), growable=True)
    states = states_for(config_with(growable), tmp_path)
    assert states is not None
    assert states.begin() is None
    assert [record.getMessage() for record in caplog.records] == [
        "Failed to initialize sequence state: In order to 'use_growable_memory', you must also enable "
        "'use_single_buffer' for state input name 'SI'."
    ]
    assert begun(states_for(config_with(replace(growable, same_buffer=True)), tmp_path))
