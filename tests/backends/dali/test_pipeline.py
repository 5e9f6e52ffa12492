"""Pipelines in this process: what they declare, where they are found, what they return and how they fail."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import ModelFolder
from halimede.backends.dali.backend import DaliBackend, DaliInstance
from halimede.backends.dali.library import shape_of
from halimede.backends.dali.source import serialized_pipeline
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Invalid, Unknown
from tests.backends.dali import pipelines
from tests.backends.dali.pipelines import SIDE, jpeg, serialized, video
from tests.backends.fakes import (
    Array,
    FakeBatch,
    FakeRequest,
    FakeResponses,
    asked,
    context,
    idle_loop,
    model_config,
    place,
    request,
)
from tests.backends.fakes import spec as tensor_spec

SOURCE = """from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def echo():
    return fn.copy(fn.external_source(name="INPUT0", dtype=types.FLOAT, ndim=1))
"""


class Rig:
    """The backend, and a version directory."""

    def __init__(self, root: Path) -> None:
        self.version = root / "m" / "1"
        self.version.mkdir(parents=True)
        with idle_loop() as loop:
            self.backend = DaliBackend(context(loop))
        self.folder = ModelFolder(self.version.parent, self.version, 1)

    def describe(self, **fields: Any) -> Mapping[str, Any]:
        return self.backend.describe(asked(**fields), self.folder, "model.dali")

    def instance(
        self,
        inputs: Mapping[str, tuple[str, Sequence[int]]],
        outputs: Mapping[str, tuple[str, Sequence[int]]],
        batch: int = 8,
        decoupled: bool = False,
        parameters: Mapping[str, str] | None = None,
    ) -> DaliInstance:
        config = replace(
            model_config(
                [tensor_spec(name, kind, dims) for name, (kind, dims) in inputs.items()],
                [tensor_spec(name, kind, dims) for name, (kind, dims) in outputs.items()],
                batch,
                backend="dali",
                parameters=parameters or {},
            ),
            model_filename="model.dali",
            decoupled=decoupled,
        )
        return self.backend.open(complete(config), self.folder).create_instance(place())


def complete(config: ModelConfig) -> ModelConfig:
    """With the message that the server would have."""
    from tests.backends.fakes import message_of

    fields = {
        "max_batch_size": config.max_batch_size,
        **{
            side: [
                {"name": each.name, "data_type": each.datatype.config_name, "dims": list(each.dims)}
                for each in getattr(config, f"{side}s")
            ]
            for side in ("input", "output")
        },
    }
    return replace(config, message=message_of(fields))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


class Streamed(FakeResponses):
    """Keeps each answer of a decoupled model."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[dict[str, Array], bool]] = []

    def send(self, i: int, outputs: Any, final: bool = True, parameters: Any = None) -> None:
        from halimede.tensors import array_of

        self.answers.append(({each.name: array_of(each) for each in outputs or ()}, final))


def answers(responses: FakeResponses) -> dict[int, dict[str, Array]]:
    from halimede.tensors import array_of

    return {i: {each.name: array_of(each) for each in tensors} for i, tensors in responses.sent.items()}


PICTURES = {"IMAGE": ("UINT8", [-1])}, {"OUT": ("FP32", [3, SIDE, SIDE])}


def picture(data: Array, *outputs: str) -> FakeRequest:
    return request({"IMAGE": ("UINT8", data[np.newaxis])}, outputs or ("OUT",))


@pytest.mark.rows("BD3", "BD4", "BD5", "BD6", "BD7")
def test_configuration_is_completed_from_the_pipeline(rig: Rig) -> None:
    options = {"output_dtype": [pipelines.FLOAT], "output_ndim": [3]}
    (rig.version / "model.dali").write_bytes(serialized(pipelines.pictures, batch_size=32, **options))
    found = rig.describe(output=[{"name": "PICTURE"}])
    assert found["max_batch_size"] == 32
    assert found["input"] == [{"name": "IMAGE", "data_type": "TYPE_UINT8", "dims": [-1], "allow_ragged_batch": True}]
    [output] = found["output"]
    assert (output["name"], output["data_type"], output["dims"]) == ("PICTURE", "TYPE_FP32", [-1, -1, -1])


@pytest.mark.rows("BD1", "BD2")
def test_files_in_their_order(rig: Rig) -> None:
    (rig.version / "dali.py").write_text(SOURCE)
    assert shape_of(serialized_pipeline(rig.version, "")).max_batch_size == 4
    (rig.version / "model.dali").write_bytes(serialized(pipelines.echo, batch_size=8))
    assert shape_of(serialized_pipeline(rig.version, "model.dali")).max_batch_size == 8
    (rig.version / "other.dali").write_text(SOURCE.replace("batch_size=4", "batch_size=5"))
    assert shape_of(serialized_pipeline(rig.version, "other.dali")).max_batch_size == 5


@pytest.mark.rows("BD1")
def test_no_file(rig: Rig) -> None:
    with pytest.raises(Unknown) as caught:
        serialized_pipeline(rig.version, "")
    assert caught.value.message == (
        "DALI Backend error: Failed to load model file. The program looked in the following locations: "
        f"{rig.version}/model.dali, {rig.version}/dali.py. Please make sure that the model exists in any of the "
        "locations and is properly serialized or can be properly serialized."
    )
    with pytest.raises(Invalid, match="may have only letters"):
        serialized_pipeline(rig.version, "a b.dali")


@pytest.mark.rows("BD2")
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (SOURCE + SOURCE[SOURCE.index("@auto") :].replace("def echo", "def other"), "and 2 have it"),
        (SOURCE.replace("@autoserialize\n", ""), "and 0 have it"),
        ("raise RuntimeError('no such file')", "dali.py: RuntimeError: no such file"),
    ],
)
def test_source_that_is_no_single_pipeline(rig: Rig, source: str, text: str) -> None:
    (rig.version / "dali.py").write_text(source)
    with pytest.raises(Unknown, match="Failed to load model file") as caught:
        serialized_pipeline(rig.version, "")
    assert text in caught.value.message


@pytest.mark.rows("BD15")
def test_file_that_is_no_pipeline(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(b"\x08\x02\xff not a pipeline")
    with pytest.raises(Unknown, match="Error while instantiating DALI pipeline") as caught:
        rig.instance(*PICTURES)
    assert caught.value.cause is Cause.FILE


@pytest.mark.rows("BD8")
def test_requests_of_several_sizes_run_at_once(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.pictures))
    instance = rig.instance(*PICTURES)
    red, blue = jpeg(), jpeg(90, 90, (10, 10, 250))
    responses = FakeResponses()
    instance.execute(FakeBatch(picture(red), picture(blue)), responses)
    found = answers(responses)
    assert [found[i]["OUT"].shape for i in range(2)] == [(1, 3, SIDE, SIDE)] * 2
    means = [found[i]["OUT"].mean(axis=(0, 2, 3)) for i in range(2)]
    np.testing.assert_allclose(means, [[0.98, 0.04, 0.04], [0.04, 0.04, 0.98]], atol=0.03)


@pytest.mark.rows("BD8")
def test_samples_of_one_request_with_different_shapes(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.echo))
    instance = rig.instance({"INPUT0": ("FP32", [-1])}, {"OUT": ("FP32", [-1])})
    responses = FakeResponses()
    requests = [request({"INPUT0": ("FP32", np.full((2, size), size, np.float32))}, ["OUT"], 2) for size in (3, 5)]
    instance.execute(FakeBatch(*requests), responses)
    assert {i: each["OUT"].tolist() for i, each in answers(responses).items()} == {
        0: [[3.0] * 3] * 2,
        1: [[5.0] * 5] * 2,
    }
    (rig.version / "model.dali").write_bytes(serialized(pipelines.decoded))
    instance = rig.instance({"IMAGE": ("UINT8", [-1])}, {"P": ("UINT8", [-1, -1, 3]), "S": ("INT32", [3])})
    first, second = jpeg(60, 40), jpeg(64, 40)
    size = max(first.size, second.size)
    padded = np.stack([np.pad(each, (0, size - each.size)) for each in (first, second)])
    responses = FakeResponses()
    instance.execute(FakeBatch(request({"IMAGE": ("UINT8", padded)}, ["P", "S"], 2)), responses)
    assert "have different shapes in one request: (40, 60, 3), (40, 64, 3)" in str(responses.failed[0])


@pytest.mark.rows("BD15")
@pytest.mark.parametrize("kept", [0.5, 0.05])
def test_truncated_picture_fails_alone_and_the_next_works(rig: Rig, kept: float) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.pictures))
    instance = rig.instance(*PICTURES)
    good, bad = picture(jpeg()), picture(jpeg()[: int(jpeg().size * kept)])
    responses = FakeResponses()
    instance.execute(FakeBatch(good, bad, good), responses)
    assert sorted(responses.sent) == [0, 2]
    assert responses.failed[1].message.startswith("DALI error: ")
    with pytest.raises(Unknown, match=r"^DALI error: "):
        instance.execute(FakeBatch(bad), FakeResponses())
    responses = FakeResponses()
    instance.execute(FakeBatch(good), responses)
    assert sorted(responses.sent) == [0]


@pytest.mark.rows("BD9")
def test_first_dimension_of_the_samples_joins_the_batch(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.pairs))
    instance = rig.instance(
        {"INPUT0": ("FP32", [-1])}, {"OUT": ("FP32", [-1])}, parameters={"split_along_outer_axis": "OUT"}
    )
    responses = FakeResponses()
    requests = [request({"INPUT0": ("FP32", np.array([[i, i]], np.float32))}, ["OUT"]) for i in (1, 5)]
    instance.execute(FakeBatch(*requests), responses)
    assert {i: each["OUT"].tolist() for i, each in answers(responses).items()} == {
        0: [[1, 1], [2, 2]],
        1: [[5, 5], [10, 10]],
    }


@pytest.mark.rows("BD9")
def test_number_of_threads(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.echo))
    for given, threads in (("3", 3), ("-1", 1)):
        instance = rig.instance({"INPUT0": ("FP32", [-1])}, {"OUT": ("FP32", [-1])}, parameters={"num_threads": given})
        assert instance._pipeline._make().num_threads == threads


@pytest.mark.rows("BD12")
@pytest.mark.parametrize("count", [12, 10, 3])
def test_video_gives_an_answer_for_each_sequence(rig: Rig, count: int) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.frames, batch_size=1))
    inputs, outputs = {"VIDEO": ("UINT8", [-1, -1])}, {"FRAMES": ("UINT8", [-1, -1, -1, -1, 3])}
    instance = rig.instance(inputs, outputs, batch=0, decoupled=True)
    for _ in range(2):
        responses = Streamed()
        film = request({"VIDEO": ("UINT8", video(count)[np.newaxis])}, ["FRAMES"])
        instance.execute(FakeBatch(film), responses)
        sizes = [found["FRAMES"].shape[1] for found, _ in responses.answers]
        assert sizes == [5] * (count // 5) + [count % 5] * (count % 5 > 0)
        assert [final for _, final in responses.answers] == [False] * (len(sizes) - 1) + [True]
        assert all(found["FRAMES"].shape[2:] == (48, 64, 3) for found, _ in responses.answers)


@pytest.mark.rows("BD12")
def test_without_batches_the_first_dimension_has_the_samples(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.echo))
    instance = rig.instance({"INPUT0": ("FP32", [-1, -1])}, {"OUT": ("FP32", [-1, -1])}, batch=0)
    responses = FakeResponses()
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    instance.execute(FakeBatch(request({"INPUT0": ("FP32", rows)}, ["OUT"], 0)), responses)
    assert answers(responses)[0]["OUT"].tolist() == rows.tolist()


@pytest.mark.rows("BD11")
def test_output_that_the_configuration_has_with_another_datatype(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.echo))
    instance = rig.instance({"INPUT0": ("FP32", [-1])}, {"OUT": ("INT32", [-1])})
    responses = FakeResponses()
    instance.execute(FakeBatch(request({"INPUT0": ("FP32", np.ones((1, 2), np.float32))}, ["OUT"])), responses)
    assert "is float32, and the configuration has INT32" in str(responses.failed[0])


@pytest.mark.rows("BD13")
def test_texts_arrive_as_their_bytes(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.texts))
    instance = rig.instance({"TEXT": ("BYTES", [2])}, {"OUT": ("UINT8", [-1])})
    texts = np.array([[b"ab", b"c"]], object)
    responses = FakeResponses()
    instance.execute(FakeBatch(request({"TEXT": ("BYTES", texts)}, ["OUT"])), responses)
    assert answers(responses)[0]["OUT"].tobytes() == b"\x02\0\0\0ab\x01\0\0\0c"


@pytest.mark.rows("BD14")
def test_operators_for_a_gpu_fail_without_one(rig: Rig) -> None:
    (rig.version / "model.dali").write_bytes(serialized(pipelines.on_gpu))
    with pytest.raises(Unknown, match="Error while instantiating DALI pipeline"):
        rig.instance({"INPUT0": ("FP32", [-1])}, {"OUT": ("FP32", [-1])})


@pytest.mark.rows("BD10")
def test_library_that_cannot_be_loaded_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with idle_loop() as loop:
        DaliBackend(context(loop, {"plugin_libs": "/no/such.so"}))
    assert "'/no/such.so' of plugin_libs could not be loaded" in caplog.text
