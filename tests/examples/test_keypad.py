"""The detector of telephone keys: its training, its graph, and many streams at once through a server."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keypad
import keypad_onnx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from keypad_audio import CLASSES, FRAME, KEYS, NONE, Clip, make_clip, pressed
from keypad_onnx import UNITS, TrainingError, Weights, build_detector, features
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving

HELD_OUT = 1000  # a seed: the training has another one
SEQUENCES, LONGEST_PAUSE = 200, 0.5
PATIENCE = 180.0


def clips(count: int, seconds: float = 2.4, seed: int = HELD_OUT) -> list[Clip]:
    generator = np.random.default_rng(seed)
    return [make_clip(generator, seconds) for _ in range(count)]


@pytest.fixture(scope="module")
def session(demo_repository: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(demo_repository / "keypad" / "1" / "model.onnx")


def run(
    session: onnxruntime.InferenceSession, samples: NDArray[np.float32], state: NDArray[np.float32] | None = None
) -> list[NDArray[np.float32]]:
    given = np.zeros((len(samples), UNITS), np.float32) if state is None else state
    found: list[NDArray[np.float32]] = session.run(["keys", "next_state"], {"audio": samples, "state": given})
    return found


def test_held_out_audio_is_heard(session: onnxruntime.InferenceSession) -> None:
    held_out = clips(150)
    keys, _ = run(session, np.stack([clip.samples for clip in held_out]))
    classes = keys.argmax(axis=-1)
    assert (classes == np.stack([clip.labels for clip in held_out])).mean() >= 0.975
    assert np.mean([pressed(each) == clip.keys for each, clip in zip(classes, held_out, strict=True)]) >= 0.92
    assert sum(len(clip.keys) for clip in held_out) > 600


def test_what_was_heard_before_matters(session: onnxruntime.InferenceSession) -> None:
    """Tones count as a key only if they last: a single frame does not tell."""
    held_out = clips(40)
    samples = np.stack([clip.samples for clip in held_out])
    alone = [run(session, samples[:, at : at + FRAME])[0][:, 0] for at in range(0, samples.shape[1], FRAME)]
    labels = np.stack([clip.labels for clip in held_out])
    whole, _ = run(session, samples)
    false_alarms, alarms_alone = (
        (classes[labels == NONE] != NONE).mean()
        for classes in (whole.argmax(axis=-1), np.stack(alone, axis=1).argmax(axis=-1))
    )
    assert false_alarms < 0.03
    assert alarms_alone > 5 * false_alarms


def test_two_halves_equal_the_whole(session: onnxruntime.InferenceSession) -> None:
    samples = np.stack([clip.samples for clip in clips(8)])
    whole, last = run(session, samples)
    first, state = run(session, samples[:, : 41 * FRAME])
    second, end = run(session, samples[:, 41 * FRAME :], state)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, atol=1e-5)
    np.testing.assert_allclose(end, last, atol=1e-5)


def test_keys_are_runs_of_frames() -> None:
    five, star = KEYS.index("5"), KEYS.index("*")
    assert pressed([NONE, five, five, five, NONE, five, NONE, five, five, star, star]) == "55*"
    assert pressed([]) == ""


def test_clips_are_what_they_say() -> None:
    for clip in clips(20, 6.0):
        assert len(clip.samples) == len(clip.labels) * FRAME
        assert np.abs(clip.samples).max() <= 1
        assert pressed(clip.labels) == clip.keys


def test_gradients_are_those_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keypad_onnx, "UNITS", 3)
    generator = np.random.default_rng(0)
    weights = keypad_onnx._first_weights(generator)
    x = generator.normal(size=(6, 2, len(keypad_onnx.BINS)))
    labels = generator.integers(CLASSES, size=(6, 2))
    _, slopes = keypad_onnx._gradients(weights, x, labels)
    for part, slope in zip(weights, slopes, strict=True):
        for _ in range(5):
            at = tuple(generator.integers(size) for size in part.shape)
            losses = []
            for step in (1e-5, -2e-5):
                part[at] += step
                losses.append(keypad_onnx._gradients(weights, x, labels)[0])
            part[at] += 1e-5
            assert slope[at] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-8)


def test_graph_computes_what_was_trained(session: onnxruntime.InferenceSession) -> None:
    generator = np.random.default_rng(1)
    bins = len(keypad_onnx.BINS)
    shapes = [(bins, 3 * UNITS), (UNITS, 3 * UNITS), (3 * UNITS,), (UNITS,), (UNITS, CLASSES), (CLASSES,)]
    weights = Weights(*[generator.normal(0, 0.3, shape) for shape in shapes])
    samples = clips(1)[0].samples[None]
    seen = features(samples)[0]
    state = np.zeros(UNITS)
    expected = []
    for x in seen:
        gates, inner = x @ weights.of_input + weights.bias, state @ weights.of_state
        update, reset = (1 / (1 + np.exp(-(gates[at : at + UNITS] + inner[at : at + UNITS]))) for at in (0, UNITS))
        hidden = np.tanh(gates[2 * UNITS :] + reset * (inner[2 * UNITS :] + weights.state_bias))
        state = (1 - update) * hidden + update * state
        odds = np.exp(state @ weights.out + weights.out_bias)
        expected.append(odds / odds.sum())
    made = onnxruntime.InferenceSession(build_detector(weights).SerializeToString())
    keys, last = run(made, samples)
    np.testing.assert_allclose(keys[0], expected, atol=1e-4)
    np.testing.assert_allclose(last[0], state, atol=1e-4)


def test_training_that_does_not_settle_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keypad_onnx, "ROUNDS", 1)
    monkeypatch.setattr(keypad_onnx, "CLIPS", 40)
    with pytest.raises(TrainingError, match=r"^the loss is still \d"):
        keypad_onnx.train()


# ---- through a server


class Asking:
    """A client that sends sequences of audio."""

    def __init__(self, url: str) -> None:
        self.client = triton.InferenceServerClient(url)

    def keys(self, samples: NDArray[np.float32], sequence: int, start: bool, end: bool) -> NDArray[np.float32]:
        tensor = triton.InferInput("audio", [1, len(samples)], "FP32")
        tensor.set_data_from_numpy(samples[None])
        flags = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
        found: NDArray[np.float32] = self.client.infer("keypad", [tensor], **flags).as_numpy("keys")[0]
        return found


def parts_of(asking: Asking, clip: Clip, number: int) -> tuple[int, Sequence[NDArray[np.float32]]]:
    """The results of a clip in two sequences: in two pieces, cut at a random frame with a pause between them; and
    whole."""
    choice = random.Random(number)
    cut = choice.randrange(1, len(clip.labels)) * FRAME
    time.sleep(choice.uniform(0, LONGEST_PAUSE))
    first = asking.keys(clip.samples[:cut], number, start=True, end=False)
    time.sleep(choice.uniform(0, LONGEST_PAUSE))
    second = asking.keys(clip.samples[cut:], number, start=False, end=True)
    whole = asking.keys(clip.samples, number + 10 * SEQUENCES, start=True, end=True)
    return cut, (first, second, whole)


@pytest.mark.rows("S68")
def test_two_halves_equal_the_whole_under_many_streams(demo_server: Serving) -> None:
    begin = time.monotonic()
    audio = clips(SEQUENCES, 1.6, seed=5)
    asking = Asking(demo_server.grpc_url)
    with ThreadPoolExecutor(SEQUENCES) as pool:
        begun = [pool.submit(parts_of, asking, clip, number + 1) for number, clip in enumerate(audio)]
        found = [each.result(timeout=PATIENCE) for each in begun]
    asking.client.close()
    for cut, (first, second, whole) in found:
        assert first.shape == (cut // FRAME, CLASSES)
        np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-5)
    assert time.monotonic() - begin < PATIENCE


def test_refused_piece_changes_nothing(demo_server: Serving) -> None:
    """The runtime refuses the piece. The stream goes on without it, and other streams are not affected."""
    clip, other = clips(2, 1.6, seed=6)
    cut = 33 * FRAME
    asking = Asking(demo_server.grpc_url)
    first, of_other = (asking.keys(c.samples[:cut], n, start=True, end=False) for n, c in ((9001, clip), (9002, other)))
    with pytest.raises(InferenceServerException, match="onnx runtime error"):
        asking.keys(clip.samples[: FRAME + 1], 9001, start=False, end=False)
    second, rest = (asking.keys(c.samples[cut:], n, start=False, end=True) for n, c in ((9001, clip), (9002, other)))
    for number, (c, parts) in enumerate(((clip, (first, second)), (other, (of_other, rest)))):
        whole = asking.keys(c.samples, 9003 + number, start=True, end=True)
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-5)
    asking.client.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_fifty_telephones_at_once(demo_server: Serving, capsys: pytest.CaptureFixture[str], protocol: str) -> None:
    url = getattr(demo_server, f"{protocol}_url")
    arguments = ["--protocol", protocol, "--url", url, "--streams", "50", "--seconds", "4", "--hurry"]
    assert keypad.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 53
    summary: Any = lines[-1].split()
    assert summary[1:3] == ["of", "50"]
    assert int(summary[0]) >= 44


def test_keypad_client_reports_errors(demo_server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert keypad.main(["--url", demo_server.http_url, "--streams", "1", "--seconds", "1", "--hurry"]) == 1
    assert capsys.readouterr().err.startswith(f"keypad: no server answers at {demo_server.http_url} over grpc; ")
