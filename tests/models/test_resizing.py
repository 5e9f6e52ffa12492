"""Changes of the instances of a version in service: what is created and what is removed, and when (R13)."""

from dataclasses import replace
from pathlib import Path

import pytest

from halimede.backends.api import InstancePlace, Placement
from halimede.config.model_config import InstanceKind
from halimede.errors import Internal, Invalid
from halimede.models.loader import LoadedVersion, LoadOptions, load
from halimede.models.repository import FoundModel, fingerprint
from halimede.models.resizing import LoadOutcome, Vacant, load_or_resize
from halimede.models.version import ModelVersion
from halimede.requests import InferRequest
from halimede.scheduling.execution import Execution
from halimede.scheduling.rate_limiter import RateLimiter
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import ManualLoop, RecordingObserver, RecordingReply
from tests.models.fakes import FakeBackend, OneBackend, Returning, repository

CONFIG = """
backend: "identity"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
"""


class Rig:
    """A version of a model with these groups, and its reloads."""

    def __init__(
        self,
        root: Path,
        groups: str,
        backend: FakeBackend | None = None,
        inline: bool = False,
        limits: dict[tuple[str, int], int] | None = None,
        gpu_fallback: bool = False,
    ) -> None:
        self.loop = ManualLoop()
        limiter = None if limits is None else RateLimiter(limits, self.loop.call_soon)
        self.options = LoadOptions(limiter=limiter, gpu_fallback=gpu_fallback)
        repository(root, {"m": CONFIG + groups})
        self.folder = root / "m"
        self.found = FoundModel("m", self.folder)
        self.backend = backend or FakeBackend()
        opened = load(self.found, (1,), OneBackend(self.backend), self.options).versions[1]
        assert isinstance(opened, LoadedVersion), opened
        opened.model.inline_safe = inline  # type: ignore[misc]  # a fake's
        opened.model.placement = Placement.LOOP  # type: ignore[misc]  # a fake's
        self.slots = opened.limiter_slots
        if self.slots is not None:
            self.slots.register()
        self.version = ModelVersion(opened, self.loop, RecordingObserver(), lambda inference: None)
        self.backend.log.clear()
        self.gone: list[str] = []

    def reload(self, groups: str) -> LoadOutcome:
        (self.folder / "config.pbtxt").write_text(CONFIG + groups)
        kept = {1: self.version.instances_now()}
        return load_or_resize(self.found, (1,), kept, OneBackend(self.backend), self.options)

    def resize(self, groups: str) -> list[str]:
        """Resizes the version. Returns the calls of the backend."""
        self.backend.log.clear()
        reloaded = self.reload(groups)
        assert reloaded.result.versions == {}
        if self.slots is not None:
            self.slots.add(reloaded.resized[1].slots)
        self.version.resize(reloaded.resized[1], lambda instance: self.gone.append(instance.place.name))  # type: ignore[attr-defined]  # a fake's
        return list(self.backend.log)

    @property
    def names(self) -> list[str]:
        return [instance.place.name for instance in self.version.serving]  # type: ignore[attr-defined]  # a fake's

    def sequence(self, number: int, start: bool = False, end: bool = False) -> RecordingReply:
        request = InferRequest("m", -1)
        request.correlation_id, request.sequence_start, request.sequence_end = number, start, end
        return self._submit(request)

    def infer(self, held: bool = False) -> RecordingReply:
        return self._submit(InferRequest("m", -1), held)

    def _submit(self, request: InferRequest, held: bool = False) -> RecordingReply:
        request.inputs = {"x": Tensor("x", INT32, (1,), HostMemory(bytes(4)))}
        for instance in self.version.serving if not held else ():
            instance.execute = _answer  # type: ignore[assignment, method-assign]  # it is given executions
        reply = RecordingReply()
        self.version.submit(self.version.infer(1, request, reply, 0))
        return reply


def _answer(batch: Execution, responses: Execution) -> None:
    responses.send(0, list(batch.requests[0].request.inputs.values()))
    responses.finished()


def group(count: int, name: str = "", more: str = "") -> str:
    return f"instance_group {{ {f'name: {name!r}' if name else ''} kind: KIND_CPU count: {count} {more} }}\n"


def test_missing_instances_are_added(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(1))
    assert rig.resize(group(3)) == ["create m_0_1", "create m_0_2"]
    assert rig.names == ["m_0_0", "m_0_1", "m_0_2"]
    assert rig.version.config.instance_groups[0].count == 3
    assert '"count":3' in rig.version.config.json
    assert len(rig.backend.opened) == 1


def test_instances_of_all_versions_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(1))
    (rig.folder / "2").mkdir()
    (rig.folder / "config.pbtxt").write_text(CONFIG + group(600))
    kept = {1: rig.version.instances_now()}
    outcome = load_or_resize(rig.found, (1, 2), kept, OneBackend(rig.backend), rig.options)
    assert {str(error) for error in outcome.result.failures.values()} == {
        "model 'm' asks for 1200 instances (600 in each of 2 versions), and --max-instances is 1024"
    }
    assert outcome.resized == {}


def test_surplus_instances_are_removed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(3))
    assert rig.resize(group(1)) == []
    assert (rig.names, rig.gone) == (["m_0_0"], ["m_0_1", "m_0_2"])
    assert [isinstance(each, Vacant) for each in rig.version.instances] == [False, True, True]
    assert rig.resize(group(2, "g")) == ["create g_1"]
    assert (rig.names, len(rig.version.instances)) == (["m_0_0", "g_1"], 3)
    assert rig.infer().response.model_version == 1


@pytest.mark.rows("R13", "S100")
def test_instances_with_resources_are_added_and_removed(tmp_path: Path) -> None:
    needs = 'rate_limiter { resources { name: "R" count: 1 } }'
    rig = Rig(tmp_path, group(1, more=needs), limits={("R", -1): 2})
    assert rig.resize(group(3, more=needs)) == ["create m_0_1", "create m_0_2"]
    replies = [rig.infer() for _ in range(3)]
    rig.loop.turn()
    assert [reply.response.model_version for reply in replies] == [1, 1, 1]
    assert rig.resize(group(1, more=needs)) == []
    assert rig.gone == ["m_0_1", "m_0_2"]
    assert rig.infer().response.model_version == 1
    assert rig.resize(group(1, more='rate_limiter { resources { name: "R" count: 2 } }')) == ["create m_0_0"]
    assert rig.infer().response.model_version == 1
    outcome = rig.reload(group(2, more='rate_limiter { resources { name: "R" count: 3 } }'))
    assert rig.slots is not None
    with pytest.raises(Invalid, match="is limited to 2"):
        rig.slots.add(outcome.resized[1].slots)
    rig.slots.discard(outcome.resized[1].slots)
    assert rig.infer().response.model_version == 1


def test_removed_instance_ends_its_batch_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(2))
    batches: list[Execution] = []
    for instance in rig.version.instances:
        instance.execute = lambda batch, responses: batches.append(responses)  # type: ignore[arg-type, method-assign]  # held
    replies = [rig.infer(held=True) for _ in range(3)]
    rig.resize(group(1))
    assert (rig.gone, len(batches)) == ([], 2)
    for responses in batches[:2]:
        responses.send(0, [Tensor("x", INT32, (1,), HostMemory(bytes(4)))])
        responses.finished()
    assert rig.gone == ["m_0_1"]
    assert [bool(reply.answers) for reply in replies] == [True, True, False]
    assert len(batches) == 3, "the one that waits runs on the instance that is left"


def test_instances_of_another_kind_replace_the_old_ones(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(2))
    assert rig.resize(group(2, more='host_policy: "p"')) == ["create m_0_0", "create m_0_1"]
    assert rig.gone == ["m_0_0", "m_0_1"]
    assert rig.infer().response.model_version == 1


def test_removed_instance_is_watched_until_it_is_gone(tmp_path: Path) -> None:
    """Sequences may stay on one that is removed: while its worker is expected back they wait."""
    rig = Rig(tmp_path, group(1) + "sequence_batching { }")
    leaving = Returning(InstancePlace("m_0_1", InstanceKind.CPU, 0, 1, 1), [])
    leaving.execute = _answer  # type: ignore[assignment, method-assign]  # it is given executions
    change = rig.reload(group(2) + "sequence_batching { }").resized[1]
    place, _, signature = change.added[1]
    rig.version.resize(replace(change, added={1: (place, leaving, signature)}), lambda instance: None)
    first, second = rig.sequence(1, start=True), rig.sequence(2, start=True)
    assert (first.finals, second.finals) == (1, 1)
    rig.resize(group(1) + "sequence_batching { }")
    leaving.changed(False, True)
    waits = rig.sequence(2)
    assert (rig.sequence(1).finals, waits.finals, rig.gone) == (1, 0, [])
    leaving.changed(True, False)
    assert waits.response.model_version == 1
    assert rig.sequence(2, end=True).finals == 1
    rig.loop.turn()
    assert rig.gone == ["m_0_1"]
    leaving.changed(False, False)
    assert rig.sequence(1, end=True).finals == 1


def test_passive_instances_are_added_without_taking_requests(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(1))
    assert rig.resize(group(1) + group(1, more="passive: true")) == ["create m_1_0"]
    assert rig.names == ["m_0_0"]
    rig.resize(group(1))
    assert rig.gone == ["m_1_0"]


@pytest.mark.parametrize(
    ("before", "after"),
    [(group(1), group(1, more="passive: true")), (group(1, more="passive: true"), group(1))],
)
def test_version_is_opened_again_if_its_policy_changes(tmp_path: Path, before: str, after: str) -> None:
    reloaded = Rig(tmp_path, before).reload(after)
    assert reloaded.resized == {}
    assert isinstance(reloaded.result.versions[1], LoadedVersion)


def test_failed_instance_leaves_the_serving_ones(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(1))
    rig.version.loaded.model._breaks_at, rig.version.loaded.model._error = 2, Internal("no room")  # type: ignore[attr-defined]  # a fake's
    reloaded = rig.reload(group(4))
    assert str(reloaded.result.versions[1]) == "no room"
    assert reloaded.resized == {}
    assert [line for line in rig.backend.log if "close" in line], "what was created is closed"
    assert rig.names == ["m_0_0"]


def test_reload_reports_files_that_changed_meanwhile(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group(1))
    before = fingerprint(rig.folder)
    (rig.folder / "1" / "new").touch()
    (rig.folder / "config.pbtxt").unlink()
    backends, options = OneBackend(rig.backend), LoadOptions()
    assert load_or_resize(rig.found, (1,), {}, backends, options, before).changed == {"1/new", "config.pbtxt"}
    gone = replace(rig.found, folder=tmp_path / "gone")
    assert load_or_resize(gone, (1,), {}, backends, options, before).changed == {""}


def test_groups_that_fell_back_to_the_cpu_are_resized_there(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 0 ] }", gpu_fallback=True)
    assert rig.resize("instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }") == ["create m_0_1"]
    assert rig.names == ["m_0_0", "m_0_1"]
