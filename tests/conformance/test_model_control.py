"""Models that are loaded and unloaded on request (explicit mode), compared with the real server: H110 to H118, R10 to
R14.

One scenario on one repository, which both servers read. Its steps follow each other, and each is sent to both.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.conformance.case import SETTLED, Because, Case, Instead, encoded, get, grpc, http, infer, one, post, refuses
from tests.conformance.pairs import OURS, pair_of
from tests.conformance.runner import TRIES, EndedError, Result, compare

_FLAGS = ("--model-control-mode=explicit", "--load-model=int32")
_TENSORS = "".join(
    f'{put} {{ name: "{put.upper()}0" data_type: TYPE_INT32 dims: [ -1 ] }}\n' for put in ("input", "output")
)
_FAILS = """class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("no " + args["model_version"])

    def execute(self, requests):
        return []
"""
_WORKS = """class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def _config(backend: str = "identity", policy: str = "all {}") -> str:
    return f'backend: "{backend}"\n{_TENSORS}instance_group {{ kind: KIND_CPU }}\nversion_policy {{ {policy} }}\n'


_JSON_CONFIG = json.dumps(
    {
        "backend": "identity",
        "max_batch_size": 3,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "type_int32", "dims": [-1]}],
        "instance_group": [{"kind": "KIND_CPU"}],
    }
)

_MEMBERS = _JSON_CONFIG[1:-1]
_GROUP = '"instance_group": [{"kind": "KIND_CPU"}]'
_LENIENT = {
    name: "{" + text + "}" if text.startswith(('"backend"', "'backend'")) else "{" + _MEMBERS + text + "}"
    for name, text in {
        "keys without quotes": ",parameters:{$a_1:{string_value:'x'}}",
        "single quotes": """,'parameters':{'a':{'string_value':'x"y\\'z'}}""",
        "trailing commas": ",'parameters':{'a':{},},",
        "camel case": ',"maxBatchSize":2',
        "a scalar twice": ',"max_batch_size":2,"maxBatchSize":4',
        "a message twice": ',"optimization":{"priority":"PRIORITY_MAX"},"optimization":{"graph":{"level":1}}',
        "a map twice": ",parameters:{a:{string_value:'1'}},parameters:{a:{}}",
        # The real server keeps the configuration in service if only the policy changes.
        "a choice twice": ",parameters:{b:{}},version_policy:{latest:{num_versions:1}},version_policy:{all:{}}",
        "an object for a list": _MEMBERS.replace(_GROUP, _GROUP.replace("[", "").replace("]", "")),
        "a scalar for a list": _MEMBERS.replace("[-1]", "'-1'"),
        "lists in a list": _MEMBERS.replace(_GROUP, _GROUP.replace("[", "[[],[null,").replace("]", "]]")),
        "numbers as strings": _MEMBERS.replace("3", "'+03'"),
        "whole floats": _MEMBERS.replace("3", "30e-1"),
        "booleans as strings": ",dynamic_batching:{preserve_ordering:'Yes'}",
        "an enum with a dash": ",optimization:{priority:'Priority-Max'}",
        "an enum as a number": ",optimization:{priority:'1'}",
        "nulls": ",max_batch_size:null,parameters:{a:null},dynamic_batching:null",
        "escapes": r",parameters:{a:{string_value:'\v\q\u0041\ud83d\ude00'}}",
        "white space": "\v\f,parameters\n:\t{}",
        "a comment": ",/* */parameters:{}",
        "two commas": ",,parameters:{}",
        "a key that is a word": ",parameters:{true:{}}",
        "a key with a dash": ",parameters:{a-b:{}}",
        "mixed case": ",max_batchSize:2",
        "a list for a scalar": ",max_batch_size:[2]",
        "a list for a message": ",optimization:[{}]",
        "a list for a map": ",parameters:[]",
        "a float with a fraction": ",max_batch_size:2.5",
        "a float as a string": ",max_batch_size:'2.0'",
        "a number for a string": ",parameters:{a:{string_value:3}}",
        "a number for a boolean": ",dynamic_batching:{preserve_ordering:1}",
        "a map key twice": ",parameters:{a:{},a:{}}",
        "a oneof twice": ",dynamic_batching:{},dynamic_batching:{}",
        "an octal number": ",max_batch_size:02",
        "half a character": r",parameters:{a:{string_value:'\ud83d'}}",
    }.items()
}
"""Configurations in protobuf's lenient JSON: some are taken, others are not (H113)."""

Change = Callable[[Path], None]
"""The change of the repository before a step."""


def _write(model: str, config: str, **files: str) -> Change:
    """Writes a model anew. `v1="..."` is the model.py of version 1, empty for none."""

    def change(repository: Path) -> None:
        # The real server looks at the latest time only: that must be later than before.
        later = max(entry.stat().st_mtime for entry in repository.rglob("*")) + 10
        shutil.rmtree(repository / model, ignore_errors=True)
        (repository / model).mkdir()
        (repository / model / "config.pbtxt").write_text(config)
        for name, text in files.items():
            version = repository / model / name[1:]
            version.mkdir()
            if text:
                (version / "model.py").write_text(text)
        os.utime(repository / model / "config.pbtxt", (later, later))

    return change


def _touch(model: str) -> Change:
    def change(repository: Path) -> None:
        later = max(entry.stat().st_mtime for entry in repository.rglob("*")) + 10
        os.utime(repository / model / "config.pbtxt", (later, later))

    return change


def _remove(model: str) -> Change:
    return lambda repository: shutil.rmtree(repository / model)


@dataclass(frozen=True, slots=True)
class StepOf:
    case: Case
    change: Change = lambda repository: None


def _load(
    model: str, name: str = "", rows: str = "", change: Change = lambda r: None, body: object = "", **more: object
) -> StepOf:
    request = post(f"/v2/repository/models/{model}/load", encoded(body))
    return StepOf(http(f"load {name or model}", f"H112 {rows}", request, **more), change)  # type: ignore[arg-type]  # fields of HttpCase


def _unload(model: str, name: str = "", body: object = "") -> StepOf:
    return StepOf(http(f"unload {name or model}", "H116", post(f"/v2/repository/models/{model}/unload", encoded(body))))


def _then(name: str, path: str, rows: str = "H110", until: str | None = None, body: bytes | None = None) -> StepOf:
    request = get(path) if body is None else post(path, body)
    return StepOf(http(f"{name}, then {path}", rows, request, until=until))


def _index(name: str, until: str = "") -> StepOf:
    return _then(name, "/v2/repository/index", until=SETTLED + until, body=b"")


def _rpc(rpc: str, message: str, text: str = "") -> StepOf:
    instead = Instead(Because.NEWER, "2.51 looks for such a directory", f"status INVALID_ARGUMENT: {text}")
    return StepOf(grpc(f"{rpc} {message}", "G8 G9 H118", rpc, message, instead=instead if text else None))


_EMPTY = "Model name cannot be empty. Please enter a valid name to deploy."
_TRAVERSAL = "invalid model name '{}', model name must not contain path traversal characters"
_UNLOADED = '"version":"{}","state":"UNAVAILABLE","reason":"unloaded"'

STORY: tuple[StepOf, ...] = (
    _index("start"),
    _then("start", "/v2/repository/index", body=b'{"ready":true}'),
    _then("start", "/v2/health/ready", "H8"),
    _load("bytes"),
    _load("bytes", "bytes again", "R10"),
    _index("load"),
    _then("load", "/v2/models/bytes", "H11"),
    _unload("bytes"),
    _index("unload", _UNLOADED.format(1)),
    _then("unload", "/v2/models/bytes", "H14 R14"),
    _then("unload", "/v2/models/bytes/versions/1", "H14 R14"),
    _then("unload", "/v2/models/bytes/ready", "H10"),
    _then("unload", "/v2/models/bytes/stats", "H120"),
    _then("unload", "/v2/health/ready", "H8"),
    _unload("bytes", "bytes again"),
    _unload("nope"),
    *(_unload("nope", f"nope, {body}", body) for body in ("{}", "[]", '{"parameters":{"unload_dependents":true}}')),
    _load("bytes", "bytes after its unload"),
    _then("load after unload", "/v2/models/bytes", "H11"),
    _load("wrong", "a wrong configuration", "R7", _write("wrong", "nonsense {", v1="")),
    _index("a wrong configuration"),
    _then("a wrong configuration", "/v2/health/ready", "H8"),
    StepOf(http("unload what is wrong", "H116", post("/v2/repository/models/wrong/unload", b"")), _remove("wrong")),
    _load("nope", rows="H118"),
    _load("%2e%2e", rows="H118"),
    _load("a%2Fb", rows="H118"),
    _load(
        "..",
        rows="H118",
        instead=Instead(Because.NEWER, "2.51 looks for such a directory", refuses(400, _TRAVERSAL.format(".."))),
    ),
    _rpc("RepositoryModelLoad", "", _EMPTY),
    _rpc("RepositoryModelLoad", 'model_name: " \\t"', _EMPTY),
    *(
        _rpc("RepositoryModelLoad", f'model_name: "{n}"', _TRAVERSAL.format(n))
        for n in ("..", " ..", "a/b", "../models/int32")
    ),
    _rpc("RepositoryModelLoad", 'model_name: "nope"'),
    _rpc("RepositoryModelLoad", 'model_name: "int32"'),
    _rpc("RepositoryModelUnload", 'model_name: "nope"'),
    _load("unready", rows="H118 R19"),
    _index("load that failed"),
    _then("load that failed", "/v2/health/ready", "H8"),
    _unload("unready"),
    _index("unload of what failed"),
    # Several versions: all of them, or none.
    _load("two", "two versions, one fails", "R11 R19", _write("two", _config("python"), v1=_WORKS, v2=_FAILS)),
    _index("two versions, one fails", _UNLOADED.format(1)),
    _then("two versions, one fails", "/v2/models/two", "R11"),
    _load("none", "no version", "R3", _write("none", _config())),
    # The directory goes: of a model without versions the index of the real server has no line, ours has its name.
    StepOf(http("unload no version", "H116", post("/v2/repository/models/none/unload", b"")), _remove("none")),
    _load("noback", "unknown backend", "R19", _write("noback", _config("nope"), v1="")),
    _load("some", "three versions", "R11", _write("some", _config(), v1="", v2="", v10="")),
    _then("three versions", "/v2/models/some", "H11"),
    _load(
        "some",
        "a policy of fewer versions",
        "R12",
        _write("some", _config(policy="latest { num_versions: 1 }"), v1="", v2="", v10=""),
    ),
    _then("a policy of fewer versions", "/v2/models/some", "R12"),
    _index("a policy of fewer versions", _UNLOADED.format(2)),
    _load("some", "a new version that fails", "R11", _write("some", _config("python"), v10=_WORKS, v11=_FAILS)),
    _then("a new version that fails", "/v2/models/some", "R11"),
    StepOf(http("the old one still answers", "R11", infer("some", one("INT32", [1], [7])))),
    _load("some", "a configuration that cannot be read", "H118 R7", _write("some", "nonsense {", v10="")),
    _then("a configuration that cannot be read", "/v2/models/some", "R11"),
    _load("some", "after its directory is gone", "H118", _remove("some")),
    _then("after its directory is gone", "/v2/models/some", "R11"),
    # Configurations that come with the load.
    _load("int32", "a configuration that is none", "H113", body={"parameters": {"config": "{"}}),
    _load("int32", "an unknown field", "H113", body={"parameters": {"config": '{"x":1}'}}),
    _load("int32", "another name", "H113", body={"parameters": {"config": '{"name":"other"}'}}),
    _load("int32", "files without a configuration", "H114", body={"parameters": {"file:1/m": "YWJj"}}),
    _load("int32", "a file that leads out", "H114", body={"parameters": {"config": "{}", "file:../m": "YWJj"}}),
    _then("overrides that failed", "/v2/models/int32/config", "H113"),
    _load("int32", "a configuration", "H113", body={"parameters": {"config": _JSON_CONFIG}}),
    _then("a configuration", "/v2/models/int32/config", "H113"),
    StepOf(http("what the configuration allows", "H113", infer("int32", one("INT32", [3, 1], [1, 2, 3])))),
    StepOf(http("what the configuration forbids", "H113", infer("int32", one("INT32", [4, 1], [1, 2, 3, 4])))),
    *(
        step
        for name, text in _LENIENT.items()
        for step in (
            _load("int32", f"lenient JSON, {name}", "H113", body={"parameters": {"config": text}}),
            _then(f"lenient JSON, {name}", "/v2/models/int32/config", "H113"),
        )
    ),
    _load("int32", "the configuration once more", "H113", body={"parameters": {"config": _JSON_CONFIG}}),
    _load("int32", "no configuration", "H113 R10"),
    _then("no configuration", "/v2/models/int32/config", "H113"),
    _load("int32", "a newer file", "H113 R10", _touch("int32")),
    _then("a newer file", "/v2/models/int32/config", "H113"),
    _load("sent", "files", "H114", body={"parameters": {"config": _JSON_CONFIG, "file:5/data": "YWJj"}}),
    _then("files", "/v2/models/sent", "H114"),
    StepOf(http("files answer", "H114", infer("sent", one("INT32", [1, 1], [7])))),
    _unload("sent", "files, before others"),
    _load("sent", "leading slash", "H114", body={"parameters": {"config": _JSON_CONFIG, "file:/6/data": "YWJj"}}),
    _then("leading slash", "/v2/models/sent", "H114"),
    *(
        _load("sent", f"a file {path}", "H114", body={"parameters": {"config": _JSON_CONFIG, f"file:{path}": "YWJj"}})
        for path in ("/../7/data", "/7/../../data", "7/data/", "/", "")
    ),
    _load("sent", "files again, no version", "H114", body={"parameters": {"config": _JSON_CONFIG, "file:x": ""}}),
    _then("files again, no version", "/v2/models/sent", "H114 R11"),
    _unload("sent", "files"),
    # Not the index: models whose directory is gone are in ours and not in that of the real server.
    _then("unload of files", "/v2/models/sent", "R14", until="has no available versions"),
    _load("sent", "files that are gone", "H114"),
)


@pytest.fixture(scope="module")
def told(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Result]:
    """The result of each step. If the real server crashes in the middle (about once in 100 loads of failing Python
    models), it loses its state, and the scenario starts again."""
    for _ in range(TRIES - 1):
        try:
            return _story(tmp_path_factory.mktemp("control"))
        except EndedError as ended:
            if ended.server.name == OURS:
                raise
    return _story(tmp_path_factory.mktemp("control"))


def _story(folder: Path) -> Sequence[Result]:
    repository, found = folder / "models", []
    for name in ("int32", "bytes", "unready"):
        servers.copy_models(repository / name, servers.MODELS / name)
    with pair_of(repository, folder, *_FLAGS) as both:
        for step in STORY:
            step.change(repository)
            found.append(compare(step.case, both, tries=1))
    return found


@pytest.mark.parametrize(
    "number", [pytest.param(i, id=s.case.name, marks=pytest.mark.rows(*s.case.rows)) for i, s in enumerate(STORY)]
)
def test_control_as_the_real_server(number: int, told: Sequence[Result], results: list[Result]) -> None:
    result = told[number]
    results.append(result)
    assert result.ours == result.wanted
    assert not result.stale, "the real server answers like this by now: the mark is out of date"


@pytest.mark.rows("H111", "R5")
def test_model_of_two_repositories_is_listed_once(oracle: None, tmp_path: Path, results: list[Result]) -> None:
    for folder, names in {"a": ("int32", "bytes"), "b": ("int32",)}.items():
        for name in names:
            servers.copy_models(tmp_path / folder / name, servers.MODELS / name)
    cases = (
        http("index with a duplicate", "H111", post("/v2/repository/index", b"")),
        http("index with a duplicate, ready", "H111", post("/v2/repository/index", b'{"ready":true}')),
        http("metadata of a duplicate", "H14", get("/v2/models/int32")),
        http("readiness with a duplicate", "H8", get("/v2/health/ready")),
        grpc("index with a duplicate", "H111 G7", "RepositoryIndex", ""),
    )
    with pair_of(tmp_path / "a", tmp_path, f"--model-repository={tmp_path / 'b'}") as both:
        for case in cases:
            result = compare(case, both)
            results.append(result)
            assert result.ours == result.wanted


_MEMBERLESS = f"""
    platform: "ensemble" {_TENSORS}
    ensemble_scheduling {{ step {{
      model_name: "nope" model_version: -1
      input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
    }} }}
"""
_NEVER_READ = {
    "nonsense": _write("nonsense", "nonsense {", v1=""),
    "named": _write("named", f'name: "other"\n{_config()}', v1=""),
    "memberless": _write("memberless", _MEMBERLESS, v1=""),
    "empty": lambda repository: (repository / "empty").mkdir(),
}
_NEVER_LOADED = {
    "no version": _write("none", _config()),
    "a policy that leaves none": _write("none", _config(policy="specific { versions: 7 }"), v1=""),
    "no backend": _write("noback", _config("nope"), v1=""),
}


@pytest.mark.rows("H8")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("what cannot be read", tuple(_NEVER_READ.values())),
        *((name, (change,)) for name, change in _NEVER_LOADED.items()),
    ],
)
def test_readiness_of_a_server_that_cannot_load_all(
    name: str, changes: tuple[Change, ...], oracle: None, tmp_path: Path, results: list[Result]
) -> None:
    servers.copy_models(tmp_path / "models" / "int32", servers.MODELS / "int32")
    for change in changes:
        change(tmp_path / "models")
    with pair_of(tmp_path / "models", tmp_path) as both:
        result = compare(http(f"readiness, {name}", "H8", get("/v2/health/ready")), both)
    results.append(result)
    assert result.ours == result.wanted
