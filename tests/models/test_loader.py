import gc
import json
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from halimede.backends.api import InstancePlace, ModelFolder, Placement
from halimede.backends.traits import Completes
from halimede.config import DescribedTensor, Description, InstanceGroup, InstanceKind, ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid, NotFound, Unavailable
from halimede.models.contents import digest_of
from halimede.models.inspection import inspect_model
from halimede.models.loader import (
    Backends,
    LoadedVersion,
    LoadOptions,
    LoadResult,
    load,
    places,
)
from halimede.models.repository import FoundModel, fingerprint
from halimede.platform.hosts import ANYWHERE, HostPolicy, available_cores
from halimede.tensors import FP32
from tests.fakes import PATIENCE
from tests.models.configs import config_of
from tests.models.fakes import FakeBackend, FakeInstance, FakeModel, OneBackend, repository

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
CONFIG = 'backend: "fake"' + TENSORS


def load_model(
    root: Path,
    text: str | None,
    backend: FakeBackend,
    options: LoadOptions | None = None,
    versions: tuple[str, ...] = ("1",),
) -> LoadResult:
    folder = repository(root, {"m": text}, versions) / "m"
    return load_found(FoundModel("m", folder), OneBackend(backend), options or LoadOptions())


def load_found(found: FoundModel, backends: Backends, options: LoadOptions) -> LoadResult:
    """What a survey finds is loaded."""
    numbers = inspect_model(found, options).versions
    if isinstance(numbers, Error):
        raise numbers
    return load(found, numbers, backends, options)


def opened(result: LoadResult, number: int = 1) -> LoadedVersion:
    version = result.versions[number]
    assert isinstance(version, LoadedVersion), version
    return version


def failure(result: LoadResult, number: int = 1) -> Error:
    assert result.failures
    error = result.versions[number]
    assert isinstance(error, Error)
    return error


MANY = "instance_group { count: 2000000000 } instance_group { count: 2000000000 }"
SAMPLE = """model_warmup { name: "s" batch_size: %d count: %d
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }
"""


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (MANY, "model 'm' asks for 4000000000 instances, and --max-instances is 1024"),
        ("instance_group { count: 1025 }", "model 'm' asks for 1025 instances, and --max-instances is 1024"),
        (SAMPLE % (1, 10001), "model 'm' asks for 10001 warm-up samples, and --max-warmup-samples is 10000"),
        (
            SAMPLE % (1, 6000) + SAMPLE.replace('"s"', '"t"') % (1, 6000),
            "model 'm' asks for 12000 warm-up samples, and --max-warmup-samples is 10000",
        ),
        (
            SAMPLE % (2000000000, 1),
            "model 'm' asks for 2000000000 requests in a warm-up sample, and --max-warmup-samples is 10000",
        ),
    ],
)
def test_configuration_that_asks_for_too_much(tmp_path: Path, more: str, text: str) -> None:
    backend = FakeBackend()
    error = failure(load_model(tmp_path, CONFIG + more, backend))
    assert (type(error), str(error), error.cause) == (Invalid, text, Cause.CONFIGURATION)
    assert not backend.log, "the model was opened"


NEEDS = "rate_limiter { " + "".join(f'resources {{ name: "r{i}" count: 1 }} ' for i in range(100)) + "}"
EVERY = "version_policy { all { } }"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "instance_group { count: 400 kind: KIND_CPU }",
            "model 'm' asks for 1200 instances (400 in each of 3 versions), and --max-instances is 1024",
        ),
        (
            f"instance_group {{ count: 67 kind: KIND_CPU {NEEDS} }}",
            "model 'm' names 20100 resources over all its instances, and 20000 are allowed",
        ),
        (
            SAMPLE % (5000, 1) + "instance_group { count: 67 kind: KIND_CPU }",
            "model 'm' asks for warm-up samples with more than 1000000 requests on all its instances",
        ),
        (
            SAMPLE.replace("[ 4 ]", "[ 250000000 ]") % (1, 1),
            "model 'm' asks for warm-up samples with more than 2147483648 bytes",
        ),
        (
            SAMPLE.replace("TYPE_FP32 dims: [ 4 ]", "TYPE_STRING dims: [ 40000 ]") % (1, 1),
            "model 'm' asks for warm-up samples with more than 100000 strings",
        ),
    ],
)
def test_versions_that_together_ask_for_too_much(tmp_path: Path, more: str, text: str) -> None:
    backend = FakeBackend()
    result = load_model(tmp_path, CONFIG + EVERY + more, backend, versions=("1", "2", "3"))
    assert {str(error) for error in result.failures.values()} == {text}
    assert (result.opened, backend.log) == ([], [])


def test_labels_are_read_once_for_all_versions(tmp_path: Path) -> None:
    text = CONFIG.replace('name: "y"', 'name: "y" label_filename: "labels"') + EVERY
    folder = repository(tmp_path, {"m": text}, ("1", "2")) / "m"
    (folder / "labels").write_text("cat\ndog\n")
    result = load_found(FoundModel("m", folder), OneBackend(FakeBackend()), LoadOptions())
    first, second = (opened(result, number).labels["y"] for number in (1, 2))
    assert first is second
    assert list(first) == ["cat", "dog"]


def test_amounts_that_are_just_allowed(tmp_path: Path) -> None:
    options = LoadOptions(max_instances=3, max_warmup_samples=2)
    text = CONFIG + "instance_group { count: 3 kind: KIND_CPU }" + SAMPLE % (1, 2)
    assert len(opened(load_model(tmp_path, text, FakeBackend(), options)).instances) == 3


def test_server_that_ends_starts_no_further_instance(tmp_path: Path) -> None:
    backend = FakeBackend()
    asked: list[None] = []

    def ending() -> bool:
        asked.append(None)
        return len(asked) > 3

    text = CONFIG + "instance_group { count: 100 kind: KIND_CPU }"
    error = failure(load_model(tmp_path, text, backend, LoadOptions(ending=ending)))
    assert str(error) == "Server exiting"
    assert len([entry for entry in backend.log if "instance" in entry]) < 10


def test_load_whose_model_is_to_be_unloaded_ends_at_its_next_step(tmp_path: Path) -> None:
    backend = FakeBackend()
    asked: list[str] = []

    def overdue(name: str) -> bool:
        asked.append(name)
        return len(asked) > 5

    text = CONFIG + "instance_group { count: 100 kind: KIND_CPU }"
    error = failure(load_model(tmp_path, text, backend, LoadOptions(overdue=overdue, retries=3)))
    assert set(asked) == {"m"}
    assert str(error) == "model 'm' was unloaded while it was loaded"
    assert len(backend.opened) == 1
    assert len([entry for entry in backend.log if "instance" in entry]) < 10


def test_load_opens_the_model_with_its_instances(tmp_path: Path) -> None:
    backend = FakeBackend()
    result = load_model(tmp_path, CONFIG, backend)
    assert not result.failures
    version = opened(result)
    assert (result.name, version.number, version.config.name) == ("m", 1, "m")
    [(config, folder)] = backend.opened
    assert config is version.config
    assert (folder.model, folder.version, folder.number) == (tmp_path / "m", tmp_path / "m" / "1", 1)
    assert backend.log == ["create m_0", "create m_1"]
    version.close()
    assert sorted(backend.log[2:]) == ["close m_0", "close m_1", "close model"]


def test_load_opens_each_version_that_the_policy_asks_for(tmp_path: Path) -> None:
    backend = FakeBackend()
    text = CONFIG + "version_policy { specific { versions: [ 1, 3 ] } }"
    result = load_model(tmp_path, text, backend, versions=("1", "2", "3"))
    assert [opened(result, number).number for number in result.versions] == [1, 3]
    assert [folder.version.name for _, folder in backend.opened] == ["1", "3"]


def test_load_of_a_version_directory_with_letters_after_its_number(tmp_path: Path) -> None:
    """(R2)"""
    backend = FakeBackend()
    load_model(tmp_path, CONFIG, backend, versions=("1abc",))
    assert [(folder.number, folder.version.name) for _, folder in backend.opened] == [(1, "1abc")]


def test_broken_version_leaves_the_others_loaded(tmp_path: Path) -> None:
    backend = FakeBackend([Internal("no such file")])
    result = load_model(tmp_path, CONFIG + "version_policy { all {} }", backend, versions=("1", "2"))
    assert str(failure(result, 1)) == "no such file"
    assert opened(result, 2).number == 2


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [(NotFound("no file"), NotFound, "no file"), (KeyError("k"), Internal, "KeyError: 'k'")],
)
def test_load_never_raises_what_a_backend_raises(
    tmp_path: Path, error: Exception, kind: type[Error], text: str
) -> None:
    failed = failure(load_model(tmp_path, CONFIG, FakeBackend([error])))
    assert (type(failed), str(failed)) == (kind, text)


def test_load_closes_the_first_instance_if_the_second_fails(tmp_path: Path) -> None:
    backend = FakeBackend([Unavailable("no room")], breaks_at=1)
    failed = failure(load_model(tmp_path, CONFIG, backend))
    assert str(failed) == "no room"
    assert backend.log[0] == "create m_0"
    assert sorted(backend.log[1:]) == ["close m_0", "close model"]


@pytest.mark.parametrize(("retries", "loads"), [(0, False), (1, False), (2, True)])
def test_load_tries_as_often_as_the_options_say(tmp_path: Path, retries: int, loads: bool) -> None:
    """(C18)"""
    backend = FakeBackend([Internal("once"), Internal("twice")])
    result = load_model(tmp_path, CONFIG, backend, LoadOptions(retries=retries))
    assert (result.failures == {}) is loads
    assert len(backend.opened) == 1 + retries


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        pytest.param(CONFIG + "nonsense", ("1",), id="not protobuf text"),
        pytest.param('name: "other"' + CONFIG, ("1",), id="another name"),
        pytest.param(CONFIG, (), id="no version"),
        pytest.param(CONFIG, ("01", "x"), id="no number"),
    ],
)
def test_load_of_an_invalid_model_fails(tmp_path: Path, text: str, versions: tuple[str, ...]) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    for version in versions:
        (tmp_path / "m" / version).mkdir()
    backend = FakeBackend()
    with pytest.raises(Error, match="m"):
        load_found(FoundModel("m", tmp_path / "m"), OneBackend(backend), LoadOptions())
    assert backend.opened == []


def test_missing_version_is_an_error_of_that_version(tmp_path: Path) -> None:
    """Every version that was asked for has an outcome, whatever happened to its directory meanwhile."""
    result = load(FoundModel("m", tmp_path / "m"), (1, 2), OneBackend(FakeBackend()), LoadOptions())
    assert (list(result.versions), list(result.failures)) == ([1, 2], [1, 2])


DESCRIPTION = Description(
    inputs=(DescribedTensor("x", FP32, (-1, 4)),),
    outputs=(DescribedTensor("y", FP32, (-1, 2)),),
)


@pytest.mark.parametrize(
    ("settings", "size"), [({}, 4), ({"default-max-batch-size": "9"}, 9), ({"default-max-batch-size": "0"}, 0)]
)
def test_load_completes_a_configuration_from_the_description(
    tmp_path: Path, settings: dict[str, str], size: int
) -> None:
    """(R72, C45)"""
    backend = FakeBackend(description=DESCRIPTION)
    config = opened(
        load_model(tmp_path, 'backend: "fake"', backend, LoadOptions(settings=lambda backend: settings))
    ).config
    assert config.max_batch_size == size
    assert [(one.name, one.datatype, one.dims) for one in config.inputs] == [("x", FP32, (4,) if size else (-1, 4))]
    [(given, folder, _)] = backend.described
    assert json.loads(given)["name"] == "m"
    assert folder.number == 1


def test_load_asks_for_no_description_of_a_complete_configuration(tmp_path: Path) -> None:
    backend = FakeBackend(description=DESCRIPTION)
    assert [one.dims for one in opened(load_model(tmp_path, CONFIG, backend)).config.outputs] == [(4,)]
    assert backend.described == []


def test_load_without_completion_takes_the_configuration_as_it_is(tmp_path: Path) -> None:
    backend = FakeBackend(description=DESCRIPTION)
    with pytest.raises(Internal):
        load_model(tmp_path, None, backend, LoadOptions(auto_complete=False))
    config = opened(load_model(tmp_path / "r", 'backend: "fake"', backend, LoadOptions(auto_complete=False))).config
    assert (config.inputs, config.outputs, backend.described) == ((), (), [])


def test_load_prefers_the_configuration_of_that_name(tmp_path: Path) -> None:
    """(C16)"""
    folder = repository(tmp_path, {"m": CONFIG}) / "m"
    (folder / "configs").mkdir()
    (folder / "configs" / "big.pbtxt").write_text(CONFIG + "max_batch_size: 7")
    result = load_found(FoundModel("m", folder), OneBackend(FakeBackend()), LoadOptions(config_name="big"))
    assert opened(result).config.max_batch_size == 7


def test_load_of_an_unknown_backend_is_an_error_of_the_version(tmp_path: Path) -> None:
    class NoBackends:
        def __contains__(self, name: object) -> bool:
            return False

        def get(self, name: str) -> FakeBackend:
            raise AssertionError(name)

    folder = repository(tmp_path, {"m": CONFIG}) / "m"
    result = load_found(FoundModel("m", folder), NoBackends(), LoadOptions())
    assert str(failure(result)).startswith("unable to find backend library for backend 'fake'")


def test_instances_are_named_after_their_group_and_their_number_there() -> None:
    """(P5)"""
    groups = [
        InstanceGroup("cpu", InstanceKind.CPU, 2),
        InstanceGroup("gpu", InstanceKind.GPU, 1, (0, 3)),
    ]
    made = places(config_of(groups=groups))
    assert [(place.name, place.kind, place.device_id) for place in made] == [
        ("cpu_0", InstanceKind.CPU, 0),
        ("cpu_1", InstanceKind.CPU, 0),
        ("gpu_0", InstanceKind.GPU, 0),
        ("gpu_0", InstanceKind.GPU, 3),
    ]
    assert [(place.index, place.total) for place in made] == [(i, 4) for i in range(4)]


class Together(FakeModel):
    """Its instances are processes, of which each waits for the others to be begun too."""

    placement = Placement.LOOP

    def __init__(self, log: list[str], number: int, breaks_at: int = -1) -> None:
        super().__init__(log, breaks_at, Unavailable("no room"))
        self._all_begun = Barrier(number)

    def create_instance(self, place: InstancePlace) -> FakeInstance:
        self._all_begun.wait(PATIENCE)
        return super().create_instance(place)


class TogetherBackend(FakeBackend):
    breaks_at = -1

    def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
        return Together(self.log, 3, self.breaks_at)


THREE = CONFIG + "instance_group [ { kind: KIND_CPU count: 3 } ]"


def test_process_instances_start_in_parallel_and_keep_their_order(tmp_path: Path) -> None:
    version = opened(load_model(tmp_path, THREE, TogetherBackend()))
    places_of = [one.place for one in version.instances if isinstance(one, FakeInstance)]
    assert [(place.name, place.index) for place in places_of] == [("m_0_0", 0), ("m_0_1", 1), ("m_0_2", 2)]


def test_parallel_instances_are_closed_if_one_fails(tmp_path: Path) -> None:
    backend = TogetherBackend()
    backend.breaks_at = 1
    assert str(failure(load_model(tmp_path, THREE, backend))) == "no room"
    assert sorted(backend.log[:2]) == ["create m_0_0", "create m_0_2"]
    assert sorted(backend.log[2:]) == ["close m_0_0", "close m_0_2", "close model"]


def test_version_closes_all_parts_if_one_fails_to_close(tmp_path: Path) -> None:
    backend = FakeBackend()
    version = opened(load_model(tmp_path, CONFIG, backend))

    class Stuck:
        healthy = True

        def execute(self, batch: object, responses: object) -> None:
            raise NotImplementedError

        def close(self) -> None:
            raise RuntimeError("stuck")

    replace(version, instances=[Stuck(), *version.instances]).close()
    assert "close model" in backend.log


def test_inspection_opens_nothing_and_finds_the_versions(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": CONFIG + "version_policy { all {} }"}, ("1", "3", "x")) / "m"
    seen = inspect_model(FoundModel("m", folder), LoadOptions())
    assert (seen.backend, seen.versions) == ("fake", (1, 3))
    assert seen.fingerprint == fingerprint(folder)


def test_configuration_is_read_once_and_again_after_a_failure(tmp_path: Path) -> None:
    """A load goes on with what the survey read, which it leaves as it was; a further try takes what is there then."""
    folder = repository(tmp_path, {"m": CONFIG + "max_batch_size: 2"}) / "m"
    found, options = FoundModel("m", folder), LoadOptions(retries=1)
    seen = inspect_model(found, options)
    assert not isinstance(seen.versions, Error)
    (folder / "config.pbtxt").write_text(CONFIG + "max_batch_size: 3")
    backends = OneBackend(FakeBackend())
    for _ in range(2):
        assert opened(load(found, seen.versions, backends, options, seen.draft)).config.max_batch_size == 2
    broken = FakeBackend([Internal("not yet")])
    assert opened(load(found, seen.versions, OneBackend(broken), options, seen.draft)).config.max_batch_size == 3


@pytest.mark.parametrize(
    ("files", "warned"),
    [
        (["config.pbtext"], "config.pbtext"),
        (["config.pbtxt.bak", "config.pbtxt"], ""),
        (["config.json", "1/config.txt"], ""),
    ],
)
def test_file_that_was_meant_to_be_the_configuration_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: list[str], warned: str
) -> None:
    folder = repository(tmp_path, {"m": None}) / "m"
    for name in files:
        (folder / name).write_text("")
    with suppress(Error):
        inspect_model(FoundModel("m", folder), LoadOptions())
    text = f"model 'm' has a file '{warned}', which is not read; its configuration must be called config.pbtxt"
    assert [record.getMessage() for record in caplog.records] == [text] * bool(warned)


def test_inspection_tells_a_missing_version_from_a_missing_configuration(tmp_path: Path) -> None:
    """Only a missing configuration is what Triton calls a poll failure (R3, R7)."""
    repository(tmp_path, {"none": CONFIG, "bad": "nonsense {"}, ["x"])
    assert isinstance(inspect_model(FoundModel("none", tmp_path / "none"), LoadOptions()).versions, Invalid)
    with pytest.raises(Invalid, match="failed to read text proto"):
        inspect_model(FoundModel("bad", tmp_path / "bad"), LoadOptions())
    with pytest.raises(Internal, match="failed to read"):
        inspect_model(FoundModel("gone", tmp_path / "gone"), LoadOptions())


def test_load_with_a_configuration_of_its_own(tmp_path: Path) -> None:
    """(H113)"""
    backend = FakeBackend()
    folder = repository(tmp_path, {"m": "nonsense {"}) / "m"
    tensor = '{"name":"x","data_type":"TYPE_FP32","dims":[4]}'
    text = f'{{"backend":"fake","max_batch_size":3,"input":[{tensor}],"output":[{tensor}]}}'
    result = load_found(FoundModel("m", folder, text), OneBackend(backend), LoadOptions())
    assert opened(result).config.max_batch_size == 3


HOSTED = (
    CONFIG
    + """
instance_group [ { host_policy: "mine" count: 1 }, { count: 1 passive: true } ]
"""
)


def test_instances_are_created_where_their_host_policy_says(tmp_path: Path) -> None:
    core = min(available_cores())
    seen: list[tuple[str, frozenset[int]]] = []

    class Looking(FakeBackend):
        def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
            seen.append(("model", available_cores()))
            model = super().open(config, folder)
            create = model.create_instance

            def look(place: InstancePlace) -> FakeInstance:
                seen.append((place.name, available_cores()))
                return create(place)

            model.create_instance = look  # type: ignore[method-assign] # to see where it is called
            return model

    before = available_cores()
    options = LoadOptions(host_policies={"mine": {"cpu-cores": f"{core}-{core}"}})
    version = opened(load_model(tmp_path, HOSTED, Looking(), options))
    assert seen == [("model", {core}), ("m_0_0", {core}), ("m_1_0", before)]
    assert available_cores() == before
    assert [(place.passive, place.host, place.host_policy) for place in version.places] == [
        (False, HostPolicy(frozenset({core})), "mine"),
        (True, ANYWHERE, ""),
    ]


def test_invalid_host_policy_fails_the_load(tmp_path: Path) -> None:
    options = LoadOptions(host_policies={"cpu": {"numa-node": "x"}})
    error = failure(load_model(tmp_path, HOSTED, FakeBackend(), options))
    assert (type(error), str(error)) == (Invalid, "Parsing 'numa-node' value: Can't parse 'x' to integer")


WARMUP = 'model_warmup { name: "s" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 %s } } }\n'


def test_samples_run_before_the_version_is_there(tmp_path: Path) -> None:
    result = load_model(tmp_path, CONFIG + WARMUP % "zero_data: true", FakeBackend())
    for instance in opened(result).instances:
        assert isinstance(instance, FakeInstance)
        assert instance.executed == 1


def test_invalid_sample_fails_the_load_and_everything_is_closed(tmp_path: Path) -> None:
    backend = FakeBackend()
    error = failure(load_model(tmp_path, CONFIG + WARMUP % "", backend))
    assert isinstance(error, Invalid)
    assert "to have input_data_type set" in str(error)
    closed = [entry for entry in backend.log if entry.startswith("close")]
    assert len(closed) == 1 + sum(entry.startswith("create") for entry in backend.log)
    assert closed[-1] == "close model"


@pytest.mark.parametrize(("digests", "text"), [(False, "response_cache { enable: true }"), (True, "")])
def test_contents_are_not_read_unless_they_are_needed(tmp_path: Path, digests: bool, text: str) -> None:
    result = load_model(tmp_path, CONFIG + text, FakeBackend(), LoadOptions(digests=digests))
    assert opened(result).contents == b""


def test_contents_of_a_version_that_shares_responses(tmp_path: Path) -> None:
    text = CONFIG + "response_cache { enable: true }"
    result = load_model(tmp_path, text, FakeBackend(), LoadOptions(digests=True), ("1", "2"))
    folder = ModelFolder(tmp_path / "m", tmp_path / "m" / "2", 2)
    assert opened(result, 2).contents == digest_of(opened(result, 2).config, folder)


def test_batch_strategy_comes_with_the_model_and_not_with_a_load(tmp_path: Path) -> None:
    """A configuration that a client sends must not have a file of the repository run as code of the server."""
    named = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "s.py" } }'
    text = f"{CONFIG} max_batch_size: 4 dynamic_batching {{ }} {named}"
    folder = repository(tmp_path, {"m": text}) / "m"
    (folder / "s.py").write_text(
        "class BatchStrategy:\n    __init__ = start = include = finish = lambda *given: None\n"
    )
    found = FoundModel("m", folder)
    backend = FakeBackend()
    assert opened(load_found(found, OneBackend(backend), LoadOptions())).strategy is not None
    parameters = {"TRITON_BATCH_STRATEGY_PATH": {"string_value": "s.py"}}
    sent = replace(found, config=json.dumps({"backend": "fake", "parameters": parameters}))
    error = failure(load_found(sent, OneBackend(backend), LoadOptions(auto_complete=True)))
    assert "can only be set by the configuration in the model's folder" in str(error)


def test_open_gets_what_the_description_has_opened(tmp_path: Path) -> None:
    tensors = (DescribedTensor("x", FP32, (-1, 4)),)
    opened = object()
    backend = FakeBackend(description=Description(tensors, tensors, opened))
    assert not load_model(tmp_path, 'backend: "fake"', backend).failures
    assert [folder.opened for _, folder in backend.opened] == [opened]


@pytest.mark.parametrize("breaks_at", [-1, 1])
def test_failed_load_leaves_nothing_open(tmp_path: Path, breaks_at: int) -> None:
    """Though nobody collects garbage: what a description leaves may be gigabytes, and its load's error is kept."""

    class Session:
        pass

    session = Session()
    gone = weakref.ref(session)
    tensors = (DescribedTensor("x", FP32, (-1, 4)),)
    backend = FakeBackend([Invalid("it does not fit")], Description(tensors, tensors, session), breaks_at)
    del session
    gc.disable()
    try:
        result = load_model(tmp_path, 'backend: "fake"', backend)
        assert str(failure(result)) == "it does not fit"
        del backend
        assert gone() is None
    finally:
        gc.enable()


def test_load_seconds_are_those_of_the_attempt_that_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("halimede.models.loader.monotonic", lambda: now)

    class Slow(FakeBackend):
        def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
            nonlocal now
            now += 2
            return super().open(config, folder)

    found = FoundModel("m", repository(tmp_path, {"m": CONFIG}) / "m")
    result = load(found, (1,), OneBackend(Slow([Invalid("not yet")])), LoadOptions(retries=1))
    assert opened(result).load_seconds == 2
    assert now == 4


def test_load_opens_no_further_version_once_the_server_ends(tmp_path: Path) -> None:
    ending = False

    class Ending(FakeBackend):
        def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
            nonlocal ending
            ending = True
            return super().open(config, folder)

    backend = Ending()
    found = FoundModel("m", repository(tmp_path, {"m": CONFIG}, ("1", "2", "3")) / "m")
    result = load(found, (1, 2, 3), OneBackend(backend), LoadOptions(ending=lambda: ending))
    assert list(result.failures) == [1, 2, 3]
    assert {str(error) for error in result.failures.values()} == {"Server exiting"}
    assert len(backend.opened) == 1


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (
            "optional: true",
            "'optional' is set to true for input 'x' while the backend model doesn't support optional input",
        ),
        (
            "allow_ragged_batch: true",
            "'allow_ragged_batch' is set to true for input 'x' of model 'm', but backend 'fake' has no ragged inputs",
        ),
    ],
)
def test_load_refuses_inputs_that_the_backend_does_not_have(tmp_path: Path, field: str, text: str) -> None:
    config = CONFIG.replace("dims: [ 4 ] }", f"dims: [ 4 ] {field} }}", 1)
    backend = FakeBackend()
    error = failure(load_model(tmp_path / "without", config, backend))
    assert isinstance(error, Invalid)
    assert (str(error), error.cause, backend.opened) == (text, Cause.CONFIGURATION, [])
    backend.traits = replace(FakeBackend.traits, optional_inputs=True, ragged=True)
    assert opened(load_model(tmp_path / "with", config, backend)).instances


ON_GPUS = CONFIG + "instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }"


def test_gpus_that_are_not_there_refuse_the_model_and_the_advice_names_the_flag(tmp_path: Path) -> None:
    error = failure(load_model(tmp_path, ON_GPUS, FakeBackend(), LoadOptions(gpus=(0,))))
    assert "specifies invalid or unsupported gpu id 1" in str(error)
    assert error.advice == "the flag --gpu-fallback=cpu runs it on the CPU"


def test_model_falls_back_to_the_cpu_before_it_is_described(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Describing(FakeBackend):
        traits = replace(FakeBackend.traits, completes=Completes.ALWAYS)

    backend = Describing()
    version = opened(load_model(tmp_path, ON_GPUS, backend, LoadOptions(gpu_fallback=True)))
    assert [(place.name, place.kind, place.device_id) for place in version.places] == [
        ("m_0_0", InstanceKind.CPU, 0),
        ("m_0_1", InstanceKind.CPU, 0),
    ]
    for shown in (version.config.json, backend.described[0][0]):
        [group] = json.loads(shown)["instance_group"]
        assert (group["kind"], group["count"], group["gpus"]) == ("KIND_CPU", 2, [])
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "model 'm' version 1: instance group 'm_0' asks for GPUs 0, 1 and runs on the CPU, with 2 instances "
        "(--gpu-fallback=cpu)"
    ]


@pytest.mark.parametrize(
    ("text", "fallback", "advised"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", True, True),
        ("Found no NVIDIA driver on your system", True, True),
        ("RuntimeError: cudaErrorNoDevice", True, True),
        ("no such file '/models/gpu/cuda-model/1/weights'", True, False),
        ("AssertionError: Torch not compiled with CUDA enabled", False, False),
    ],
)
def test_code_that_asks_for_a_gpu_on_the_cpu_gets_an_advice(
    tmp_path: Path, text: str, fallback: bool, advised: bool
) -> None:
    groups = "instance_group { kind: KIND_GPU }" if fallback else "instance_group { kind: KIND_CPU }"
    options = LoadOptions(gpu_fallback=fallback)
    error = failure(load_model(tmp_path, CONFIG + groups, FakeBackend([Internal(text)]), options))
    assert str(error) == text
    assert ("--gpu-fallback=cpu placed it on the CPU" in error.advice) == advised
