from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.engine.tracing import Tracing
from halimede.engine_port import TraceInfo, TraceSettings
from halimede.errors import Error, Invalid, Unsupported
from halimede.models.lifecycle import ModelTable
from halimede.models.version import ModelVersion
from halimede.options import TraceOptions
from halimede.requests import InferRequest, Reply
from halimede.traces import HTTP, TENSORS, TIMESTAMPS, Context, RootTrace
from halimede.tracing.writer import Writer
from tests.fakes import ManualLoop, RecordingObserver, RecordingReply
from tests.models.configs import config_of, spec
from tests.models.fakes import loaded

DEFAULT = TraceInfo((), 1000, -1, 0, "", "triton")
ON = TraceOptions(level=("TIMESTAMPS",), rate=1, file="/dev/null")
OPENTELEMETRY = TraceOptions(mode="opentelemetry", level=("TIMESTAMPS",), rate=1)


class Spans:
    """An export that keeps traces."""

    def __init__(self) -> None:
        self.roots: list[RootTrace] = []
        self.closed = 0.0

    def take(self, root: RootTrace) -> None:
        self.roots.append(root)

    def close(self, timeout: float) -> None:
        self.closed = timeout


class Traces:
    """Trace settings beside a table with the models `m`, `other` and `many`, which serve (the last is decoupled), and
    `unready`, which does not."""

    def __init__(self, options: TraceOptions | None = None, spans: "Spans | None" = None) -> None:
        table = ModelTable()
        config = config_of(spec("INPUT0", "INT32", [1]), outputs=[spec("INPUT0", "INT32", [1])])
        for name, served in (("m", config), ("other", config), ("many", replace(config, decoupled=True))):
            version = ModelVersion(loaded(served), ManualLoop(), RecordingObserver(), lambda one: None)
            table.publish(name, [version], lambda one: None)
        table.refuse("unready", 1, "Internal: broke")
        self.tracing = Tracing(table, options or TraceOptions(), Writer(gather=0), spans)
        self._answer = self.tracing.answers[TraceSettings]

    def ask(self, model: str = "", refusal: Error | None = None, **changes: Any) -> TraceInfo:
        facts = self._answer(TraceSettings(model, tuple(changes.items()), refusal))
        assert isinstance(facts, TraceInfo)
        return facts


def test_trace_settings_have_three_layers() -> None:
    """Contract T2: a model has what was set for it, else what was set for all, else the server's own."""
    traces = Traces()
    assert (traces.ask(), traces.ask("m")) == (DEFAULT, DEFAULT)
    assert traces.ask(rate=7, log_frequency=3) == TraceInfo((), 7, -1, 3, "", "triton")
    assert traces.ask("m", rate=9) == TraceInfo((), 9, -1, 3, "", "triton")
    assert traces.ask(rate=None).rate == 1000
    assert traces.ask("m") == TraceInfo((), 9, -1, 3, "", "triton")
    assert traces.ask("m", rate=None) == TraceInfo((), 1000, -1, 3, "", "triton")
    assert traces.ask(log_frequency=None) == traces.ask("m") == DEFAULT


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"level": ("TIMESTAMPS",)}, "trace file name is not given"),
        ({"level": ("TENSORS",), "rate": 0}, "sample rate must be non-zero"),
    ],
)
def test_trace_settings_that_cannot_be_change_nothing(changes: dict[str, Any], reason: str) -> None:
    """Contract H123."""
    traces = Traces()
    with pytest.raises(Invalid) as raised:
        traces.ask("m", **changes)
    assert str(raised.value) == f"Attempting to set invalid trace setting :{reason}"
    assert traces.ask("m") == DEFAULT


def test_trace_settings_may_be_anything_while_tracing_is_off() -> None:
    assert Traces().ask(rate=0, count=0, level=()).rate == 0


def test_trace_settings_of_a_model_that_is_not_there_come_before_what_is_wrong() -> None:
    traces, wrong = Traces(), Unsupported("wrong")
    with pytest.raises(Invalid, match="Request for unknown model : nope"):
        traces.ask("nope", wrong)
    with pytest.raises(Invalid, match="Request for unknown model : unready"):
        traces.ask("unready", wrong)
    with pytest.raises(Unsupported, match="wrong"):
        traces.ask("m", wrong, rate=3)
    assert traces.ask("m") == DEFAULT


def sampled(traces: Traces, times: int, model: str = "m", context: Context | None = None) -> list[bool]:
    """Whether each of so many requests is traced."""
    found = []
    for _ in range(times):
        request, reply = InferRequest(model), RecordingReply()
        slot: Reply = reply
        if traces.tracing.on and not traces.tracing.passes(request):  # as front ends do
            slot = traces.tracing.traced(request, reply, HTTP, (1, 2), context)
        found.append(request.trace is not None)
        assert (slot is reply) == (request.trace is None)
        slot.send(None, True)
    return found


def test_tracing_is_off_until_something_is_to_be_traced() -> None:
    traces = Traces(TraceOptions(file="f"))
    assert not traces.tracing.on
    traces.ask(level=("TIMESTAMPS",))
    assert traces.tracing.on
    traces.ask(level=None)
    assert not traces.tracing.on
    traces.ask("m", level=("TENSORS",))
    assert traces.tracing.on


def test_what_passes_is_counted_and_only_what_passes() -> None:
    """Contract T1: whoever asks first, and whoever does not, has the same requests traced."""
    traces = Traces(ON)
    traces.ask(rate=3)
    passes = [traces.tracing.passes(InferRequest(model)) for model in ("nobody", "many", "unready", "m", "m", "m", "m")]
    assert passes == [False, False, False, True, True, False, False]
    assert sampled(traces, 4) == [True, False, False, True]
    streamed = InferRequest("many")
    streamed.decoupled_ok = True
    assert traces.tracing.passes(streamed)


def test_nothing_passes_where_a_context_may_ask_for_a_trace() -> None:
    traces = Traces(replace(ON, mode="opentelemetry"), Spans())
    assert not traces.tracing.passes(InferRequest("m"))


def test_one_in_so_many_is_traced_the_first_not_before_its_turn() -> None:
    """Contract T1."""
    traces = Traces(ON)
    traces.ask(rate=3)
    assert sampled(traces, 7) == [False, False, True, False, False, True, False]


def test_count_of_traces_ends_them_and_what_is_left_is_shown() -> None:
    traces = Traces(ON)
    traces.ask(count=2)
    assert sampled(traces, 1) == [True]
    assert traces.ask().count == 1
    assert sampled(traces, 3) == [True, False, False]
    assert (traces.ask().count, traces.tracing.on) == (0, False)


def test_count_that_is_left_stays_when_other_settings_change() -> None:
    traces = Traces(ON)
    traces.ask(count=5)
    sampled(traces, 2)
    assert traces.ask(rate=2).count == 3
    assert traces.ask("m", rate=1).count == 3
    sampled(traces, 1)
    assert (traces.ask("m").count, traces.ask().count) == (2, 3)
    assert traces.ask(count=None).count == -1


def test_settings_that_change_begin_to_count_anew() -> None:
    """Contract T2."""
    traces = Traces(ON)
    traces.ask(rate=3)
    assert sampled(traces, 2) == [False, False]
    traces.ask(log_frequency=1)
    assert sampled(traces, 3) == [False, False, True]


def test_model_with_settings_of_its_own_counts_for_itself() -> None:
    traces = Traces(ON)
    traces.ask("m", rate=2)
    assert sampled(traces, 1) == [False]
    assert sampled(traces, 1, "other") == [True]
    assert sampled(traces, 1) == [True]
    traces.ask("m", rate=None)
    assert sampled(traces, 2) == [True, True]


def test_settings_of_a_model_follow_those_below_them() -> None:
    traces = Traces(ON)
    traces.ask("m", rate=2)
    traces.ask(level=("TENSORS",))
    assert traces.ask("m") == TraceInfo(("TENSORS",), 2, -1, 0, "/dev/null", "triton")
    request = InferRequest("m")
    for _ in range(2):
        traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
    assert request.trace is not None


def test_context_of_a_client_matters_only_in_the_mode_opentelemetry() -> None:
    assert not Traces(ON).tracing.takes_context
    spans = Spans()
    traces = Traces(OPENTELEMETRY, spans)
    assert traces.tracing.takes_context
    traces.ask(rate=0)
    assert sampled(traces, 2) == [False, False]
    assert sampled(traces, 2, context=Context(1, 2)) == [True, True]


def test_context_of_a_client_has_a_request_traced_though_the_count_is_used_up() -> None:
    traces = Traces(OPENTELEMETRY, Spans())
    traces.ask(count=1)
    assert sampled(traces, 2) == [True, False]
    assert sampled(traces, 2, context=Context(1, 2)) == [True, True]
    assert sampled(traces, 1) == [False]
    traces.ask(level=())
    assert sampled(traces, 1, context=Context(1, 2)) == [False]


def test_what_no_model_may_answer_counts_for_nothing() -> None:
    """Contract H30."""
    traces = Traces(ON)
    traces.ask(rate=2)
    for model in ("nobody", "unready", "many"):
        assert sampled(traces, 3, model) == [False, False, False]
    assert sampled(traces, 2) == [False, True]
    request = InferRequest("many")
    request.decoupled_ok = True
    for _ in range(2):
        traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
    assert request.trace is not None


def test_what_could_not_be_read_counts_and_is_not_written(tmp_path: Path) -> None:
    traces = Traces(TraceOptions(level=("TIMESTAMPS",), rate=2, count=2, file=str(tmp_path / "t")))
    traces.tracing.undecoded("m", HTTP, (1, 2))
    assert sampled(traces, 2) == [True, False]
    traces.tracing.undecoded("m", HTTP, (1, 2))
    assert (traces.ask().count, traces.tracing.on) == (0, False)
    traces.tracing.close()
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_read_has_a_span_of_its_own() -> None:
    spans = Spans()
    traces = Traces(OPENTELEMETRY, spans)
    traces.tracing.undecoded("m", HTTP, (1, 2), Context(3, 4))
    assert [(root.received, root.client, root.times) for root in spans.roots] == [((1, 2), (3, 4, ""), None)]


def test_mode_opentelemetry_shows_its_own_settings_and_takes_changes() -> None:
    """Contract H121, D22."""
    traces = Traces(OPENTELEMETRY, Spans())
    facts = traces.ask(rate=3, log_frequency=7)
    assert (facts.rate, facts.mode, facts.log_frequency) == (3, "opentelemetry", 0)
    assert dict(facts.more)["bsp_max_queue_size"] == ("2048",)
    assert dict(facts.more)["url"] == ("http://localhost:4318/v1/traces",)


def test_tensors_are_not_traced_in_the_mode_opentelemetry(caplog: pytest.LogCaptureFixture) -> None:
    """Contract T10: said once."""
    traces = Traces(OPENTELEMETRY, Spans())
    traces.ask(level=("TIMESTAMPS", "TENSORS"))
    assert sampled(traces, 2) == [True, True]
    texts = [record.message for record in caplog.records]
    assert texts == ["Tensor level tracing is not supported by the mode: opentelemetry"]


def test_level_without_a_file_is_said_and_traces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert not Traces(TraceOptions(level=("TIMESTAMPS",))).tracing.on
    assert "tracing is off: trace file name is not given" in caplog.text


def test_close_writes_what_was_traced(tmp_path: Path) -> None:
    traces = Traces(TraceOptions(level=("TIMESTAMPS",), rate=1, file=str(tmp_path / "t")))
    request = InferRequest("m")
    slot = traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
    assert request.trace is not None
    request.trace.begun(request, 1, [1, 2, 3, 4, 5, 6])
    slot.send(None, True)
    traces.tracing.close()
    assert '"model_name":"m"' in (tmp_path / "t").read_text()


def test_levels_are_bits_of_what_is_noted() -> None:
    spans = Spans()
    traces = Traces(TraceOptions(level=("TIMESTAMPS", "TENSORS"), rate=1, file="f"), spans)
    request = InferRequest("m")
    slot = traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
    assert request.trace is not None
    request.trace.begun(request, 1, [1, 2, 3, 4, 5, 6])
    slot.send(None, True)
    assert spans.roots[0].level == TIMESTAMPS | TENSORS


def test_traces_of_a_count_are_in_one_file_however_large(tmp_path: Path) -> None:
    """Contract T6."""
    count = 1500
    traces = Traces(TraceOptions(level=("TIMESTAMPS",), rate=1, count=count, file=str(tmp_path / "t")))
    for number in range(count):
        request = InferRequest("m")
        request.id = f"{number:0>1000}"
        slot = traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
        assert request.trace is not None
        request.trace.begun(request, 1, [1, 2, 3, 4, 5, 6])
        slot.send(None, True)
    traces.tracing.close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.0"]
    assert (tmp_path / "t.0").read_text().count('"request_id"') == count


def test_traces_that_end_after_their_setting_was_replaced_are_written(tmp_path: Path) -> None:
    traces = Traces(TraceOptions(level=("TIMESTAMPS",), rate=1, count=2, file=str(tmp_path / "t")))
    slots = []
    for name in ("refused", "late"):
        request = InferRequest("m")
        request.id = name
        slots.append(traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2)))
        if name == "late" and request.trace is not None:
            request.trace.begun(request, 1, [1, 2, 3, 4, 5, 6])
    traces.ask(count=None, rate=5)
    for slot in slots:
        slot.send(None, True)
    traces.tracing.close()
    assert '"request_id":"late"' in (tmp_path / "t.0").read_text()


def test_traces_that_never_end_do_not_keep_the_others(tmp_path: Path) -> None:
    traces = Traces(TraceOptions(level=("TIMESTAMPS",), rate=1, file=str(tmp_path / "t")))
    for name in ("told", "never told"):
        request = InferRequest("m")
        request.id = name
        slot = traces.tracing.traced(request, RecordingReply(), HTTP, (1, 2))
        assert request.trace is not None
        request.trace.begun(request, 1, [1, 2, 3, 4, 5, 6])
        if name == "told":
            slot.send(None, True)
    traces.ask(rate=5)
    traces.tracing.close()
    assert '"request_id":"told"' in (tmp_path / "t").read_text()
