"""The agents of a model: which calls they get, in which order, and where the model is then read."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.errors import Error, Internal, NotFound, Unsupported
from halimede.models.agents import PREFIX, Agents, AgentsWanted
from halimede.models.inspection import inspect_model
from halimede.models.loader import LoadedVersion, LoadOptions, LoadResult, load
from halimede.models.repository import FoundModel
from tests.models.fakes import FakeBackend, OneBackend, repository

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
AGENT = """
from pathlib import Path
from halimede.agents import RepositoryAgent

class Told(RepositoryAgent):
    def say(self, what):
        with Path(self.model.parameters["log"]).open("a") as log:
            print(self.model.parameters["word"], what, file=log)
        if self.model.parameters.get("fails") == what:
            raise ValueError("no")
        if self.model.parameters.get("exits") == what:
            raise SystemExit(7)

    def load(self):
        self.say("load")
        if "moves" not in self.model.parameters:
            return None
        folder = self.model.private_folder() / self.model.parameters["moves"]
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(self.model.parameters["config"])
        return folder

    def load_complete(self):
        self.say("load_complete")

    def load_fail(self):
        self.say("load_fail")

    def unload(self):
        self.say("unload")

    def unload_complete(self):
        self.say("unload_complete")
"""


def asking(log: Path, *agents: dict[str, str]) -> str:
    texts = []
    for agent in agents:
        values = {"log": str(log), **agent}
        parameters = " ".join(f"parameters {{ key: {key!r} value: {value!r} }}" for key, value in values.items())
        texts.append(f'agents {{ name: "told" {parameters} }}')
    return f"model_repository_agents {{ {' '.join(texts)} }}"


class Bench:
    """A repository with the model `m`, and the calls of its agents."""

    def __init__(self, root: Path, *agents: dict[str, str], versions: tuple[str, ...] = ("1",), own: str = "") -> None:
        (root / "agents" / "told").mkdir(parents=True)
        (root / "agents" / "told" / "agent.py").write_text(AGENT)
        self.log = root / "log"
        text = own or f'backend: "fake"{TENSORS}'
        (root / "models" / "m").mkdir(parents=True)
        self.folder = repository(root / "models", {"m": f"{text} {asking(self.log, *agents)}"}, versions) / "m"
        self.found = FoundModel("m", self.folder)
        self.options = LoadOptions(agents=Agents(root / "agents"))
        self.backend = FakeBackend()

    def load(self) -> LoadResult:
        numbers = inspect_model(self.found, self.options).versions
        if isinstance(numbers, Error):
            raise numbers
        return load(self.found, numbers, OneBackend(self.backend), self.options)

    @property
    def told(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """`TMPDIR` of its own shows what is left there."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return lambda *agents, **more: Bench(tmp_path, *agents, **more)


def close(result: LoadResult) -> None:
    for version in result.versions.values():
        assert isinstance(version, LoadedVersion)
        version.close()


def left(tmp_path: Path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "tmp") if name.startswith(PREFIX)]  # noqa: PTH208 - names only


@pytest.mark.rows("R22")
def test_agents_are_called_in_order_and_in_reverse_order(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"}, {"word": "b"})
    result = one.load()
    assert one.told == ["a load", "b load", "b load_complete", "a load_complete"]
    close(result)
    assert one.told[4:] == ["b unload", "a unload", "b unload_complete", "a unload_complete"]


@pytest.mark.rows("R22")
def test_model_is_read_where_the_agent_put_it(bench: Callable[..., Bench], tmp_path: Path) -> None:
    config = f'backend: "fake"{TENSORS}max_batch_size: 7'.replace("\n", " ")
    one = bench({"word": "a", "moves": "elsewhere", "config": config}, versions=(), own=TENSORS)
    result = one.load()
    [(opened, folder)] = one.backend.opened
    assert opened.max_batch_size == 7
    assert folder.model.name == "m"
    assert folder.version.is_dir()
    assert not folder.version.is_relative_to(one.folder)
    assert left(tmp_path)
    close(result)
    assert not left(tmp_path)


def test_private_folder_is_its_owners_only(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench({"word": "a", "moves": "m", "config": f'backend: "fake"{TENSORS}'.replace("\n", " ")})
    result = one.load()
    assert [(tmp_path / "tmp" / name).stat().st_mode & 0o777 for name in left(tmp_path)] == [0o700]
    close(result)


@pytest.mark.rows("R22")
def test_agent_that_fails_stops_the_load(bench: Callable[..., Bench], tmp_path: Path) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config}, {"word": "b", "fails": "load"}, {"word": "c"})
    with pytest.raises(Internal, match="an agent of model 'm' failed: ValueError: no"):
        one.load()
    assert one.told == ["a load", "b load", "a load_fail"]
    assert not one.backend.opened
    assert not left(tmp_path)
    with pytest.raises(Internal, match="ValueError: no"):
        one.load()  # what failed is asked again


@pytest.mark.rows("R22")
def test_agent_that_exits_stops_only_the_load(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"}, {"word": "b", "exits": "load"})
    with pytest.raises(Internal, match="an agent of model 'm' failed: SystemExit: 7"):
        one.load()
    assert one.told == ["a load", "b load", "a load_fail"]
    assert not one.backend.opened


@pytest.mark.rows("R22")
@pytest.mark.parametrize("when", ["load_complete", "unload", "unload_complete"])
def test_agent_that_exits_later_changes_nothing(bench: Callable[..., Bench], when: str) -> None:
    one = bench({"word": "a"}, {"word": "b", "exits": when})
    result = one.load()
    assert not result.failures
    close(result)
    assert one.told[2:] == [
        *("b load_complete", "a load_complete"),
        *("b unload", "a unload", "b unload_complete", "a unload_complete"),
    ]


@pytest.mark.rows("R22")
def test_agents_are_called_if_the_load_fails(bench: Callable[..., Bench]) -> None:
    text = f'backend: "fake"{TENSORS}version_policy {{ all {{}} }}'
    one = bench({"word": "a"}, {"word": "b"}, versions=("1", "2"), own=text)
    one.backend = FakeBackend([Internal("no room")])
    result = one.load()
    assert result.failures
    assert one.told == ["a load", "b load", "b load_fail", "a load_fail"]
    version = result.versions[2]
    assert isinstance(version, LoadedVersion)
    version.close()
    assert one.told[4:] == []


def test_exception_of_an_agent_after_the_load_is_ignored(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a", "fails": "unload"}, {"word": "b", "fails": "load_complete"})
    result = one.load()
    assert not result.failures
    close(result)
    assert one.told[2:] == [
        *("b load_complete", "a load_complete"),
        *("b unload", "a unload", "b unload_complete", "a unload_complete"),
    ]


def test_second_inspection_runs_no_agent(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"})
    seen = inspect_model(one.found, one.options)
    assert inspect_model(one.found, one.options) == seen
    assert one.told == ["a load"]
    close(one.load())
    assert one.told == ["a load", "a load_complete", "a unload", "a unload_complete"]
    inspect_model(one.found, one.options)
    assert one.told[4:] == ["a load"]


def test_changed_model_is_loaded_and_the_old_one_unloaded(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"})
    first = one.load()
    (one.folder / "1" / "more").touch()
    before = inspect_model(one.found, one.options)
    second = one.load()
    close(first)
    close(second)
    assert one.told == [
        *("a load", "a load_complete"),
        *("a load", "a load_complete"),
        *("a unload", "a unload_complete", "a unload", "a unload_complete"),
    ]
    (one.folder / "1" / "yet more").touch()
    assert inspect_model(one.found, one.options).load_digest != before.load_digest


def test_model_without_versions_is_not_loaded_after_all(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"}, versions=())
    with pytest.raises(Error, match="at least one version must be available"):
        one.load()
    assert one.told == ["a load", "a load_fail"]


@pytest.mark.rows("R22")
def test_unknown_agent_fails_the_load(tmp_path: Path) -> None:
    text = f'backend: "fake"{TENSORS} model_repository_agents {{ agents {{ name: "nope" }} }}'
    found = FoundModel("m", repository(tmp_path, {"m": text}, ("1",)) / "m")
    options = LoadOptions(agents=Agents(tmp_path))
    for _ in range(2):  # and stays so
        with pytest.raises(NotFound, match=r"unable to find 'libtritonrepoagent_nope\.so' for repo agent 'nope'"):
            inspect_model(found, options)


def test_client_brings_no_agents(bench: Callable[..., Bench]) -> None:
    one = bench({"word": "a"})
    same = '{"backend": "fake", "model_repository_agents": {"agents": [{"name": "told", "parameters": %s}]}}'
    other = same % '{"word": "z", "log": "/elsewhere"}'
    with pytest.raises(Unsupported, match="agents of model 'm' can only be set by the configuration in its folder"):
        inspect_model(replace(one.found, config=other), one.options)
    own = same % f'{{"word": "a", "log": "{one.log}"}}'
    inspect_model(replace(one.found, config=own), one.options)
    assert one.told == ["a load"]


def test_model_without_agents_any_more_is_read_in_its_repository(bench: Callable[..., Bench], tmp_path: Path) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config})
    first = one.load()
    (one.folder / "config.pbtxt").write_text(config)
    second = one.load()
    assert [folder.model == one.folder for _, folder in one.backend.opened] == [False, True]
    close(first)
    assert one.told[-2:] == ["a unload", "a unload_complete"]
    assert not left(tmp_path)
    close(second)


def test_agents_are_unloaded_with_the_last_version(bench: Callable[..., Bench], tmp_path: Path) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config})
    first, second = one.load(), one.load()  # nothing has changed: the second one opens the same once more
    assert one.told == ["a load", "a load_complete"]
    close(first)
    assert one.told == ["a load", "a load_complete"]
    assert left(tmp_path)
    close(second)
    assert one.told[2:] == ["a unload", "a unload_complete"]
    assert not left(tmp_path)


def test_load_that_begins_while_the_model_goes_asks_the_agents_once_more(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config})
    first = one.load()
    numbers = inspect_model(one.found, one.options).versions
    assert not isinstance(numbers, Error)
    close(first)
    second = load(one.found, numbers, OneBackend(one.backend), one.options)
    assert one.told == [*("a load", "a load_complete", "a unload", "a unload_complete"), *("a load", "a load_complete")]
    [_, (_, folder)] = one.backend.opened
    assert folder.version.is_dir()
    close(second)
    assert not left(tmp_path)


def test_failed_reload_leaves_the_agents_of_the_serving_version(bench: Callable[..., Bench], tmp_path: Path) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config})
    first = one.load()
    one.backend = FakeBackend([Internal("no room")])
    assert one.load().failures
    assert one.told == ["a load", "a load_complete"]
    close(first)
    assert one.told[2:] == ["a unload", "a unload_complete"]
    assert not left(tmp_path)


def test_configuration_that_comes_with_a_load_has_an_engagement_of_its_own(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    config = f'backend: "fake"{TENSORS}'.replace("\n", " ")
    one = bench({"word": "a", "moves": "m", "config": config})
    parameters = {"word": "a", "log": str(one.log), "moves": "m", "config": config}
    agents = {"agents": [{"name": "told", "parameters": parameters}]}
    sent = replace(one.found, config=json.dumps({"backend": "fake", "model_repository_agents": agents}))
    seen = inspect_model(sent, one.options)
    inspect_model(one.found, one.options)  # as the one does who asks whether a client may send this
    assert not isinstance(seen.versions, Error)
    result = load(sent, seen.versions, OneBackend(one.backend), one.options)
    assert one.told == ["a load", "a load", "a load_complete", "a load_fail"]
    [(_, folder)] = one.backend.opened
    assert folder.version.is_dir()
    assert not folder.version.is_relative_to(one.folder)
    close(result)
    assert not left(tmp_path)


def test_agents_that_may_not_be_asked_are_wanted_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"word": "a"})
    with pytest.raises(AgentsWanted):
        inspect_model(bench.found, bench.options, may_ask_agents=False)
    assert not bench.log.exists()
    asked = inspect_model(bench.found, bench.options)
    assert inspect_model(bench.found, bench.options, may_ask_agents=False) == asked
    assert bench.log.read_text() == "a load\n"
