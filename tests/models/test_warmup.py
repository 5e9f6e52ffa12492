"""Warm-up samples: what runs on which instances, and the errors of invalid samples (W1 to W4)."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from struct import pack
from threading import Thread, current_thread

import pytest

from halimede.backends.api import Batch, Instance, InstancePlace, Placement, Responses
from halimede.config import InstanceKind, WarmupData, WarmupInput, WarmupSample
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.measurement.statistics import Statistics
from halimede.models.warmup import MAX_REPEATED_ERRORS, Warming, WarmUpRun, count_runs, warm_up
from halimede.tensors import BYTES, INT32, UNKNOWN_DATATYPE, DataType, Shape, split_bytes
from tests.models.configs import config_of, spec

Execute = Callable[[Batch, Responses], None]


def echo(batch: Batch, responses: Responses) -> None:
    for i, one in enumerate(batch.requests):
        responses.send(i, list(one.request.inputs.values()))


class Recording:
    """An instance that keeps what it sees: a list of the requests of each batch, by name shape and bytes."""

    healthy = True

    def __init__(self, execute: Execute = echo) -> None:
        self.batches: list[list[dict[str, tuple[DataType, Shape, bytes]]]] = []
        self._execute = execute

    def execute(self, batch: Batch, responses: Responses) -> None:
        self.batches.append(
            [
                {t.name: (t.datatype, t.shape, bytes(t.memory.host())) for t in one.request.inputs.values()}
                for one in batch.requests
            ]
        )
        self._execute(batch, responses)

    def close(self) -> None:
        """Nothing to give back."""


class OnThread(Recording):
    """One that is called on its own thread."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def thread(self) -> "OnThread":
        return self

    def submit(self, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name="its own")
        self.names.append(thread.name)
        thread.start()


def an_input(
    data: WarmupData | None = WarmupData.ZERO,
    dims: Shape = (3,),
    datatype: DataType = INT32,
    file: str = "",
    name: str = "INPUT0",
) -> WarmupInput:
    return WarmupInput(name, datatype, dims, data, file)


def a_sample(*inputs: WarmupInput, name: str = "s", batch_size: int = 1, count: int = 1) -> WarmupSample:
    return WarmupSample(name, batch_size, count, inputs or (an_input(),))


def warm(
    samples: Sequence[WarmupSample],
    instances: Sequence[Instance],
    folder: Path = Path(),
    *,
    max_batch_size: int = 4,
    datatype: str = "INT32",
    placement: Placement = Placement.THREAD,
    on_loop: Callable[[Callable[[], None]], object] = lambda work: work(),
    decoupled: bool = False,
    passive: int = -1,
    ending: Callable[[], bool] = lambda: False,
) -> Sequence[WarmUpRun]:
    config = replace(
        config_of(spec("INPUT0", datatype, [-1]), max_batch_size=max_batch_size),
        warmup=tuple(samples),
        decoupled=decoupled,
    )
    places = [
        InstancePlace(f"m_0_{i}", InstanceKind.CPU, 0, i, len(instances), passive=i == passive)
        for i in range(len(instances))
    ]

    def check() -> None:
        if ending():
            raise Unavailable("Server exiting")

    warming = Warming(config, placement, on_loop, check)
    warm_up(warming, folder, 1, list(zip(places, instances, strict=True)), 2)
    return warming.runs


@pytest.mark.rows("W2")
def test_samples_are_counted_like_other_inferences() -> None:
    runs = warm([a_sample(batch_size=3, count=2)], [Recording(), Recording()])
    statistics = Statistics()
    list(count_runs(runs, statistics))
    counts = statistics.read("m", 1)
    assert (counts.inference_count, counts.execution_count) == (12, 4)
    assert [(batch.batch_size, batch.compute_infer.count) for batch in counts.batches] == [(3, 4)]
    assert {phase: duration.count for phase, duration in counts.inference.items() if duration.count} == dict.fromkeys(
        ("success", "queue", "compute_input", "compute_infer", "compute_output"), 12
    )
    assert counts.inference["success"].ns >= counts.inference["compute_infer"].ns > 0


def test_sample_of_a_model_without_batching_is_one_inference() -> None:
    statistics = Statistics()
    list(count_runs(warm([a_sample()], [Recording()], max_batch_size=0), statistics))
    assert statistics.read("m", 1).inference_count == 1


def test_every_sample_runs_on_every_instance_as_often_as_it_says() -> None:
    instances = [Recording(), Recording(), Recording()]
    warm([a_sample(), a_sample(name="t", batch_size=3, count=2)], instances, passive=2)
    zeros = {"INPUT0": (INT32, (1, 3), bytes(12))}
    for instance in instances[:2]:
        assert instance.batches == [[zeros], [zeros] * 3, [zeros] * 3]
    assert instances[2].batches == []


def test_every_run_is_logged_at_the_verbose_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO - 1, "halimede.models.warmup"):
        warm([a_sample(count=2)], [Recording()])
    assert [record.getMessage() for record in caplog.records] == [
        f"model 'm' instance m_0_0 is running warmup sample 's' for iteration {i}" for i in (1, 2)
    ]


def test_model_without_batching_gets_the_dims_as_they_are() -> None:
    instance = Recording()
    warm([a_sample()], [instance], max_batch_size=0)
    assert instance.batches == [[{"INPUT0": (INT32, (3,), bytes(12))}]]


def test_random_data_is_random() -> None:
    instance = Recording()
    warm([a_sample(an_input(WarmupData.RANDOM, (1000,)))], [instance])
    ((one,),) = instance.batches
    assert len(set(one["INPUT0"][2])) > 100


def test_random_truth_is_true_or_false() -> None:
    instance = Recording()
    sample = a_sample(an_input(WarmupData.RANDOM, (1000,), spec("x", "BOOL", [1]).datatype))
    warm([sample], [instance], datatype="BOOL")
    ((one,),) = instance.batches
    assert set(one["INPUT0"][2]) == {0, 1}


@pytest.mark.parametrize("data", [WarmupData.ZERO, WarmupData.RANDOM])
def test_strings_are_empty(data: WarmupData) -> None:
    instance = Recording()
    warm([a_sample(an_input(data, (2,), BYTES))], [instance], datatype="BYTES")
    ((one,),) = instance.batches
    assert split_bytes(one["INPUT0"][2], 2) == [b"", b""]


def write(folder: Path, data: bytes) -> WarmupInput:
    (folder / "warmup").mkdir()
    (folder / "warmup" / "f").write_bytes(data)
    return an_input(WarmupData.FILE, file="f")


def test_data_of_a_file_as_far_as_it_is_needed(tmp_path: Path) -> None:
    instance = Recording()
    warm([a_sample(write(tmp_path, bytes(range(20))))], [instance], tmp_path)
    ((one,),) = instance.batches
    assert one["INPUT0"][2] == bytes(range(12))


def test_strings_of_a_file(tmp_path: Path) -> None:
    data = b"".join(pack("<I", len(word)) + word for word in (b"a", b"bc", b""))
    write(tmp_path, data)
    instance = Recording()
    warm([a_sample(an_input(WarmupData.FILE, (3,), BYTES, "f"))], [instance], tmp_path, datatype="BYTES")
    ((one,),) = instance.batches
    assert one["INPUT0"][2] == data


def test_input_of_a_control_is_added_unchecked() -> None:
    instance = Recording()
    warm([a_sample(an_input(), an_input(name="START", dims=(1,)))], [instance])
    ((one,),) = instance.batches
    assert one["START"] == (INT32, (1, 1), bytes(4))


def test_instance_is_called_on_its_own_thread() -> None:
    instance = OnThread()
    warm([a_sample(count=2)], [instance])
    assert instance.names == ["its own"] * 2
    assert len(instance.batches) == 2


def test_instance_without_a_thread_of_its_own_is_called_on_one_that_ends() -> None:
    threads: list[Thread] = []

    def execute(batch: Batch, responses: Responses) -> None:
        threads.append(current_thread())
        echo(batch, responses)

    warm([a_sample(count=2)], [Recording(execute)])
    assert {thread.name for thread in threads} == {"warm-up_0"}
    assert not threads[0].is_alive()


def test_instance_of_the_loop_is_called_there_and_answers_later() -> None:
    queued: list[Callable[[], None]] = []

    def execute(batch: Batch, responses: Responses) -> None:
        def later() -> None:
            echo(batch, responses)
            responses.finished()

        Thread(target=later).start()

    instance = Recording(execute)

    def on_loop(work: Callable[[], None]) -> None:
        queued.append(work)
        work()

    warm([a_sample(batch_size=2, count=3)], [instance], placement=Placement.LOOP, on_loop=on_loop)
    assert len(queued) == len(instance.batches) == 3


def test_answers_that_come_after_the_batch_are_waited_for() -> None:
    def execute(batch: Batch, responses: Responses) -> None:
        responses.promise([0])
        Thread(target=lambda: responses.fail(0, Internal("late"))).start()

    with pytest.raises(Invalid, match=r"failed to run warmup sample 's': late; $"):
        warm([a_sample()], [Recording(execute)])


def test_decoupled_model_may_answer_often_and_its_errors_count() -> None:
    def execute(batch: Batch, responses: Responses) -> None:
        for i in range(len(batch.requests)):
            responses.send(i, [], final=False)
            responses.fail(i, Internal(f"bad {i}"), final=False)
            responses.send(i, None)

    with pytest.raises(Invalid) as caught:
        warm([a_sample(batch_size=2)], [Recording(execute)], decoupled=True)
    assert str(caught.value) == "failed to run warmup sample 's': bad 0; bad 1; "


def fails(batch: Batch, responses: Responses) -> None:
    for i in range(len(batch.requests)):
        responses.fail(i, Internal(f"bad {i}"))


def says_nothing(batch: Batch, responses: Responses) -> None:
    """As a model that forgets its requests."""


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        (fails, "bad 0; bad 1; "),
        (says_nothing, "expected a single response, got 0; expected a single response, got 0; "),
        (lambda batch, responses: 1 / 0, "ZeroDivisionError: division by zero; ZeroDivisionError: division by zero; "),
    ],
)
def test_sample_that_fails_is_the_last(execute: Execute, text: str) -> None:
    instance = Recording(execute)
    with pytest.raises(Invalid) as caught:
        warm([a_sample(batch_size=2, count=3), a_sample(name="t")], [instance])
    assert str(caught.value) == f"failed to run warmup sample 's': {text}"
    assert len(instance.batches) == 1


def test_one_failing_instance_fails_the_warm_up() -> None:
    with pytest.raises(Invalid, match="bad 0"):
        warm([a_sample()], [Recording(), Recording(fails), Recording()])


def test_no_sample_begins_after_a_failure() -> None:
    instances = [Recording(fails), Recording(fails), *(Recording() for _ in range(20))]
    with pytest.raises(Invalid, match="bad 0"):
        warm([a_sample()], instances)
    assert [len(instance.batches) for instance in instances[2:]] == [0] * 20


def test_sample_that_hangs_is_left_when_the_server_ends() -> None:
    instance = Recording(lambda batch, responses: None)
    with pytest.raises(Unavailable, match="Server exiting"):
        warm([a_sample()], [instance], placement=Placement.LOOP, ending=lambda: bool(instance.batches))
    assert len(instance.batches) == 1


def test_samples_without_end_end_with_the_server() -> None:
    instance = Recording()
    with pytest.raises(Unavailable, match="Server exiting"):
        warm([a_sample(count=2**32 - 1)], [instance], ending=lambda: len(instance.batches) == 3)
    assert len(instance.batches) == 3


@pytest.mark.parametrize(("max_batch_size", "batch_size"), [(4, 5), (0, 2)])
def test_batch_larger_than_the_model_takes(max_batch_size: int, batch_size: int) -> None:
    instance = Recording()
    with pytest.raises(Invalid) as caught:
        warm([a_sample(batch_size=batch_size)], [instance], max_batch_size=max_batch_size)
    complaint = f"batch size {batch_size} for 'm_0_0', max allowed is {max_batch_size}; "
    assert str(caught.value) == "failed to run warmup sample 's': " + complaint * batch_size
    assert instance.batches == []


def test_error_of_a_huge_batch_is_repeated_only_so_often() -> None:
    with pytest.raises(Invalid) as caught:
        warm([a_sample(batch_size=2**32 - 1)], [Recording()])
    assert str(caught.value).count("max allowed is") == MAX_REPEATED_ERRORS


ID = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("each", "kind", "text"),
    [
        (
            an_input(dims=(2, -1)),
            Invalid,
            "warmup setting expects all variable-size dimensions are specified for input 'INPUT0'",
        ),
        (an_input(None), Invalid, f"{ID}warmup setting expects input 'INPUT0' to have input_data_type set"),
        (
            an_input(datatype=UNKNOWN_DATATYPE),
            Invalid,
            f"{ID}inference input 'INPUT0' data-type is '<invalid>', but model 'm' expects 'INT32'",
        ),
        (
            an_input(name="OTHER"),
            Invalid,
            f"{ID}expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['INPUT0']. Please provide all required input(s).",
        ),
        (
            an_input(WarmupData.FILE, file="/nope"),
            Internal,
            "failed to open text file for read {folder}/warmup/nope: No such file or directory",
        ),
        (
            an_input(WarmupData.FILE, file="a/../../config.pbtxt"),
            Invalid,
            "'input_data_file' must stay within the folder 'warmup' for m, got 'a/../../config.pbtxt'",
        ),
    ],
)
def test_sample_that_makes_no_request(tmp_path: Path, each: WarmupInput, kind: type[Error], text: str) -> None:
    instance = Recording()
    with pytest.raises(kind) as caught:
        warm([a_sample(each)], [instance], tmp_path)
    assert str(caught.value) == text.format(folder=tmp_path)
    assert instance.batches == []


def test_file_that_is_too_short(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        warm([a_sample(write(tmp_path, bytes(8)))], [Recording()], tmp_path)
    assert str(caught.value) == f"{ID}warmup setting expects 12 bytes, but the data provided from fonly has 8 bytes"


class Returning(Recording):
    """One that may come back: on the loop, and its batches end by themselves."""

    def __init__(self, execute: Execute = echo) -> None:
        super().__init__(execute)
        self.again: Callable[[Callable[[], None]], None] | None = None

    def execute(self, batch: Batch, responses: Responses) -> None:
        super().execute(batch, responses)
        responses.finished()

    def warm_again_by(self, warm: Callable[[Callable[[], None]], None]) -> None:
        self.again = warm


def test_instance_that_came_back_is_warmed_up_again() -> None:
    instance, left = Returning(), Returning()
    samples = [a_sample(count=2), a_sample(name="t", batch_size=3)]
    warm(samples, [instance, left], placement=Placement.LOOP, passive=1)
    first, instance.batches = instance.batches, []
    over: list[int] = []
    assert instance.again is not None
    instance.again(lambda: over.append(len(instance.batches)))
    assert instance.batches == first
    assert over == [3], "told once, after the last"
    assert left.again is None


def test_instance_that_came_back_and_fails_its_sample_is_let_serve(caplog: pytest.LogCaptureFixture) -> None:
    broken: list[bool] = []

    def execute(batch: Batch, responses: Responses) -> None:
        for i, one in enumerate(batch.requests):
            if broken:
                responses.fail(i, Internal("no more"))
            else:
                responses.send(i, list(one.request.inputs.values()))

    instance = Returning(execute)
    warm([a_sample(count=2)], [instance], placement=Placement.LOOP)
    broken.append(True)
    over: list[int] = []
    assert instance.again is not None
    instance.again(lambda: over.append(1))
    assert over == [1]
    assert len(instance.batches) == 3
    assert (
        "model 'm' instance m_0_0: warmup sample 's' failed after a restart: no more; it serves anyway" in caplog.text
    )


def test_instance_of_a_model_without_samples_has_nothing_to_repeat() -> None:
    instance = Returning()
    warm([], [instance], placement=Placement.LOOP)
    assert instance.again is None
