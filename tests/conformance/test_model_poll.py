"""Models that follow their repositories (poll mode), compared with the real server: R1 to R9, R12, R13, C14, C16; and
models of one name in two repositories: R20, C19.

One scenario on the same two repositories, which both servers poll every second: changes, and the answers of both.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.conformance import rawhttp, transcript
from tests.conformance.case import SETTLED, Case, get, grpc, http, infer, one, post
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result, compare
from tests.conformance.servers import Server

_FLAGS = ("--model-control-mode=poll", "--repository-poll-secs=1", "--model-config-name=big")
_OURS_ONLY = ("--settle-secs=0.2",)
_TENSORS = "".join(
    f'{put} {{ name: "{put.upper()}0" data_type: TYPE_INT32 dims: [ -1 ] }}\n' for put in ("input", "output")
)
_READY = '"name":"{}","version":"{}","state":"READY"'
_UNLOADED = '"name":"{}","version":"{}","state":"UNAVAILABLE","reason":"unloaded"'


def config(size: int = 0, count: int = 1, policy: str = "", name: str = "", backend: str = "identity") -> str:
    return (
        f'backend: "{backend}"\n{f"name: {json.dumps(name)}" if name else ""}\nmax_batch_size: {size}\n{_TENSORS}'
        f"instance_group {{ kind: KIND_CPU count: {count} }}\n{f'version_policy {{ {policy} }}' if policy else ''}\n"
    )


Change = Callable[[Path], None]


def write(model: str, text: str, *folders: str, where: str = "a") -> Change:
    """Writes a configuration, and folders of the model. Other files stay."""

    def change(root: Path) -> None:
        folder = root / where / model
        for name in folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        # The real server looks at the latest time only: that must be later than before.
        later = max(entry.stat().st_mtime for entry in (root / "a").rglob("*")) + 10
        (folder / "config.pbtxt").write_text(text)
        os.utime(folder / "config.pbtxt", (later, later))

    return change


def remove(path: str) -> Change:
    return lambda root: shutil.rmtree(root / path)


def both(*changes: Change) -> Change:
    def change(root: Path) -> None:
        for each in changes:
            each(root)

    return change


@dataclass(frozen=True, slots=True)
class StepOf:
    case: Case
    change: Change = lambda root: None


def index(name: str, rows: str, change: Change = lambda root: None, until: str = "") -> StepOf:
    case = http(f"index {name}", f"H110 {rows}", post("/v2/repository/index", b""), until=SETTLED + until)
    return StepOf(case, change)


def then(
    name: str, path: str, rows: str, change: Change = lambda root: None, until: str | None = None, masks: str = ""
) -> StepOf:
    return StepOf(http(f"{name}, then {path}", rows, get(path), until=until, masks=masks), change)


def answers(name: str, model: str, rows: str) -> StepOf:
    return StepOf(http(f"{name}, {model} answers", rows, infer(model, one("INT32", [1], [7]))))


_STATS = "/v2/models/changed/stats"
_TIMES = "times last-inference length"
STORY: tuple[StepOf, ...] = (
    index("start", "R1 R6 R7 C14"),
    then("start", "/v2/models/odd", "R2 R44"),
    then("start", "/v2/models/named/config", "R26 C16"),
    then("start", "/v2/models/plain/config", "R26 C16"),
    StepOf(http("load", "H117", post("/v2/repository/models/changed/load", b""))),
    StepOf(http("unload", "H117", post("/v2/repository/models/changed/unload", b""))),
    answers("before changes", "changed", "R9"),
    then(
        "another number of instances", "/v2/models/changed/config", "R9 R13", write("changed", config(count=3)),
        until='"count":3',
    ),
    then("another number of instances", _STATS, "R13", masks=_TIMES, until='"inference_count":1'),
    then(
        "one instance again", "/v2/models/changed/config", "R13", write("changed", config(count=1)), until='"count":1,'
    ),
    answers("one instance again", "changed", "R13"),
    then("one instance again", _STATS, "R13", masks=_TIMES, until='"inference_count":2'),
    then(
        "a further version", "/v2/models/changed", "R9 R44", write("changed", config(policy="all {}"), "2"),
        until='"1","2"',
    ),
    then("a further version", _STATS, "R13", masks=_TIMES, until='"inference_count":2'),
    then("the latest version only", "/v2/models/changed", "R12", write("changed", config()), until=r'\["2"\]'),
    index("the latest version only", "R12", until=_UNLOADED.format("changed", 1)),
    index(
        "new, one that cannot be read, one that cannot be loaded",
        "R7 R9",
        both(
            write("unread", "nonsense {"),
            write("unloadable", config(backend="nope")),
            write("new", config(), "1"),
        ),
        until=_READY.format("new", 1),
    ),
    answers("cannot be read", "unread", "R7 R9 R11"),
    answers("cannot be loaded", "unloadable", "R9 R11"),
    then(
        "those that are well again", "/v2/models/unread/config", "R9",
        both(write("unread", config(5)), write("unloadable", config(6))), until='"max_batch_size":5',
    ),
    then("those that are well again", "/v2/models/unloadable/config", "R9", until='"max_batch_size":6'),
    index("gone", "R9", remove("a/gone"), until=r'\A(?![\s\S]*"gone")'),
    index("a second one of that name", "R5", write("new", config(), "1", where="b"), until="two or more"),
    index("one of that name again", "R5 R9", remove("b/new"), until=_READY.format("new", 1)),
    index(
        "a version is removed", "R9", both(remove("a/odd/3"), write("odd", config(policy="all {}"))),
        until=_UNLOADED.format("odd", 3),
    ),
    StepOf(grpc("index", "G7 R9", "RepositoryIndex", "")),
)  # fmt: skip


@contextmanager
def served(root: Path, flags: tuple[str, ...], ours_only: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Both servers over the repositories `a` and `b`."""
    more = (f"--model-repository={root / 'b'}", *flags)
    with pair_of(root / "a", root, *more, ours_only=ours_only) as pair:
        yield pair
        pair.real.stop(1)  # it sleeps between two polls


@pytest.fixture(scope="module")
def polled(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Path]]:
    root = tmp_path_factory.mktemp("poll")
    for folder in ("a", "b"):
        (root / folder).mkdir()
    (root / "a" / "README").write_text("no model")
    for name in ("changed", "unread", "unloadable", "gone", "plain"):
        write(name, config(), "1")(root)
    write("odd", config(policy="all {}"), "1", "3", "01", "foo", "warmup", "configs")(root)
    write("named", config(3), "1", "configs")(root)
    (root / "a" / "named" / "configs" / "big.pbtxt").write_text(config(7))
    with served(root, _FLAGS, _OURS_ONLY) as pair:
        yield pair, root


@pytest.mark.parametrize("step", [pytest.param(s, id=s.case.name, marks=pytest.mark.rows(*s.case.rows)) for s in STORY])
def test_poll_as_the_real_server(step: StepOf, polled: tuple[Pair, Path], results: list[Result]) -> None:
    pair, root = polled
    step.change(root)
    result = compare(step.case, pair)
    results.append(result)
    assert result.ours == result.wanted


_TOLD = {
    "R2": ("ignore version directory '01' which contains leading zeros in its directory name",
           "ignore version directory 'foo' which fails to convert to integral number"),
    "R5": ("failed to poll model 'new': not unique across all model repositories",),
    "R6": ("unexpected directory name 'misnamed' for model 'other', directory name must equal model name",),
    "R7": ("failed to read text proto from {root}/a/never/config.pbtxt",),
}  # fmt: skip


@pytest.mark.rows(*_TOLD)
def test_log_of_polls_is_that_of_the_real_server(polled: tuple[Pair, Path]) -> None:
    """After the scenario. Our index has the reasons too; the real server's has only the names."""
    pair, root = polled
    both(write("misnamed", config(name="other"), "1"), write("never", "nonsense {", "1"))(root)
    limit = time.monotonic() + 30
    for server in (pair.ours, pair.real):
        for text in (text.format(root=root) for texts in _TOLD.values() for text in texts):
            while text not in server.log.read_text(errors="replace"):
                assert time.monotonic() < limit, f"{server.name} does not say: {text}"
                time.sleep(0.05)
    index = rawhttp.converse(pair.ours.http, (post("/v2/repository/index", b""),))
    assert "unexpected directory name 'misnamed'" in transcript.of_http(index).text


NAMESPACED: tuple[Case, ...] = (
    http("index of namespaces", "H110 R20 C19", post("/v2/repository/index", b"")),
    grpc("index of namespaces", "G7 R20", "RepositoryIndex", ""),
    *(http(f"{name} of two", "R20", get(f"/v2/models/{path}")) for name, path in (
        ("metadata", "both"), ("version", "both/versions/1"), ("configuration", "both/config"),
        ("statistics", "both/stats"), ("readiness", "both/ready"),
    )),
    http("inference of two", "R20", infer("both", one("INT32", [1], [7])), masks="infer-error-type"),
    http("inference of one", "R20", infer("first", one("INT32", [1], [7]))),
    http("version of one that is not there", "R20", get("/v2/models/first/versions/9")),
    http("metadata of none", "R20", get("/v2/models/nope")),
    http("readiness of none", "R20", get("/v2/models/nope/ready")),
    http("inference of none", "R20", infer("nope", one("INT32", [1], [7])), masks="infer-error-type"),
    http("unload of two", "R20", post("/v2/repository/models/both/unload", b"")),
    http(
        "index after an unload of two", "R20", post("/v2/repository/index", b""),
        until=SETTLED + "both.*unloaded.*both.*unloaded",
    ),
    http("inference of two unloaded", "R20", infer("both", one("INT32", [1], [7])), masks="infer-error-type"),
    http("load of two", "R20", post("/v2/repository/models/both/load", b"")),
    http("index after a load of two", "R20", post("/v2/repository/index", b"")),
    http("inference of two loaded again", "R20", infer("both", one("INT32", [1], [7])), masks="infer-error-type"),
    http("load of none", "R20", post("/v2/repository/models/nope/load", b"")),
)  # fmt: skip


@pytest.mark.rows("R20", "C19", "H110", "G7")
def test_namespaces_as_the_real_server(oracle: None, tmp_path: Path, results: list[Result]) -> None:
    for where, names in {"a": ("both", "first"), "b": ("both", "second")}.items():
        for name in names:
            (tmp_path / "a").mkdir(exist_ok=True)
            write(name, config(), "1", where=where)(tmp_path)
    flags = ("--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*")
    with served(tmp_path, flags) as pair:
        for case in NAMESPACED:
            result = compare(case, pair)
            results.append(result)
            assert result.ours.replace(str(tmp_path), "") == result.wanted.replace(str(tmp_path), ""), case.name


_CONSTANT = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        output = pb_utils.Tensor("OUTPUT0", np.array([{}], np.int32))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""
_ENSEMBLE = f"""
    platform: "ensemble" {_TENSORS}
    ensemble_scheduling {{ step {{
      model_name: "member" model_version: -1
      input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
    }} }}
"""


def _move(path: str, to: str) -> Change:
    def change(root: Path) -> None:
        (root / path).rename(root / to)

    return change


def _linked(name: str, answer: str, change: Change = lambda root: None) -> StepOf:
    asked = infer("ensemble", one("INT32", [1], [7]))
    return StepOf(http(f"ensemble, {name}", "R20 S83", asked, until=answer, masks="infer-error-type"), change)


_GONE = "unknown model: '[^']*::ensemble' has no available versions"
LINKS: tuple[StepOf, ...] = (
    _linked("its own member", r'"data":\[1\]'),
    _linked("own member gone, another one there", r'"data":\[2\]', _move("a/member", "own")),
    _linked("own member back", r'"data":\[1\]', _move("own", "a/member")),
    _linked("own member gone again", r'"data":\[2\]', _move("a/member", "own")),
    _linked("the other gone too", _GONE, _move("b/member", "other")),
    _linked("the other back", r'"data":\[2\]', _move("other", "b/member")),
    _linked("own member back again", r'"data":\[1\]', _move("own", "a/member")),
)


@pytest.mark.rows("R20", "S83")
def test_ensemble_is_linked_to_the_member_that_is_there(oracle: None, tmp_path: Path, results: list[Result]) -> None:
    for number, where in enumerate(("a", "b"), 1):
        (tmp_path / "a").mkdir(exist_ok=True)
        write("member", config(backend="python"), "1", where=where)(tmp_path)
        (tmp_path / where / "member" / "1" / "model.py").write_text(_CONSTANT.format(number))
    write("ensemble", _ENSEMBLE, "1")(tmp_path)
    flags = ("--model-namespacing=true", "--model-control-mode=poll", "--repository-poll-secs=1")
    with served(tmp_path, flags, _OURS_ONLY) as pair:
        for step in LINKS:
            step.change(tmp_path)
            result = compare(step.case, pair)
            results.append(result)
            assert result.ours == result.wanted, step.case.name


_SLOW = """import os
import time


class TritonPythonModel:
    def initialize(self, args):
        limit = time.monotonic() + 30
        while not os.path.exists("{go}") and time.monotonic() < limit:
            time.sleep(0.01)

    def execute(self, requests):
        return []
"""


_Answer = tuple[int, bytes]


def _overtaking(server: Server, go: Path) -> tuple[list[_Answer], _Answer]:
    """The answers to a load, an unload and a load, and the index afterwards. The first load ends when all are sent."""

    def ask(path: str) -> HTTPConnection:
        connection = stack.enter_context(closing(HTTPConnection("127.0.0.1", server.http, timeout=30)))
        connection.request("POST", f"/v2/repository/{path}")
        return connection

    def answered(connection: HTTPConnection) -> _Answer:
        answer = connection.getresponse()
        return answer.status, answer.read()

    go.unlink(missing_ok=True)
    with ExitStack() as stack:
        asked = []
        for verb in ("load", "unload", "load"):
            asked.append(ask(f"models/slow/{verb}"))
            time.sleep(0.1)  # so that they arrive in this order
        go.touch()
        answers = [answered(each) for each in asked]
        until = time.monotonic() + 30
        while b"LOADING" in (index := answered(ask("index")))[1] and time.monotonic() < until:
            time.sleep(0.05)
    return answers, index


@pytest.mark.rows("R17")
def test_loads_and_unloads_that_overtake_each_other(oracle: None, tmp_path: Path) -> None:
    """All requests for one model are carried out in their order, so none is out of date, and no client gets the text of
    R18."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    write("slow", config(backend="python"), "1")(tmp_path)
    (tmp_path / "a" / "slow" / "1" / "model.py").write_text(_SLOW.format(go=tmp_path / "go"))
    with served(tmp_path, ("--model-control-mode=explicit",)) as pair:
        # Each server by itself: how long the one takes must not say when the other is asked.
        ours, real = (_overtaking(server, tmp_path / "go") for server in (pair.ours, pair.real))
    answered, index = ours
    assert answered == real[0] == [(200, b"")] * 3
    assert json.loads(index[1]) == [{"name": "slow", "version": "1", "state": "READY"}]
    # One after the other there too, but of two that wait whichever comes first: the unload is the last now and then.
    assert json.loads(real[1][1])[0]["state"] in ("READY", "UNAVAILABLE")
