"""Configurations, compared with the real server: which load, what the index says of the others, and the rendered JSON.

Both servers start on one repository. A model for which the real server finds no version is in its index without a
reason. Our reason is then compared with the line in the real server's log.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import servers
from tests.conformance.configurations import MODELS, STRICT_MODELS, Model
from tests.conformance.pairs import pair_of

_WORDS = "Invalid argument|Internal|Unsupported|Not found|Unavailable"
_POLL = re.compile(r"Poll failed for model directory '([^']+)': (.*?)\"?$")
_NO_LOAD = re.compile(r"failed to load model '([^']+)': (.*?)\"?$")
_BACKENDS = re.compile(r"'[^']*/backends/")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server shows: the lines of its index, the configurations by model, and the log's reasons for models
    without a version."""

    index: dict[str, list[tuple[Any, Any, str]]]
    configs: dict[str, str]
    told: dict[str, str]


def _see(server: servers.Server, names: Sequence[str], repository: Path) -> Seen:
    index: dict[str, list[tuple[Any, Any, str]]] = {}
    for line in json.loads(_ask(server, "/v2/repository/index", b"")):
        reason = _BACKENDS.sub("'BACKENDS/", line.get("reason", "")).replace(str(repository), "REPOSITORY")
        index.setdefault(line["name"], []).append((line.get("version"), line.get("state"), reason))
    log = server.log.read_text(errors="replace").replace(str(repository), "REPOSITORY").splitlines()
    told = {found[1]: found[2] for line in log for found in (_POLL.search(line) or _NO_LOAD.search(line),) if found}
    return Seen(index, {name: _ask(server, f"/v2/models/{name}/config") for name in names}, told)


def _ask(server: servers.Server, path: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def _shown(folder: Path, models: Sequence[Model], *flags: str) -> tuple[Seen, Seen]:
    for model in models:
        model.write(folder / "models")
    (folder / "models" / "file").write_text("no model")
    names = [model.name for model in models]
    with pair_of(folder / "models", folder, *flags) as both:
        return _see(both.ours, names, folder / "models"), _see(both.real, names, folder / "models")


@pytest.fixture(scope="module")
def shown(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    return _shown(tmp_path_factory.mktemp("configurations"), MODELS)


@pytest.fixture(scope="module")
def shown_strictly(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    return _shown(tmp_path_factory.mktemp("strict"), STRICT_MODELS, "--disable-auto-complete-config")


def _params(models: Sequence[Model]) -> list[Any]:
    return [pytest.param(model, id=model.name, marks=pytest.mark.rows(*model.rows)) for model in models]


@pytest.mark.parametrize("model", _params(MODELS))
def test_configuration_as_the_real_server(model: Model, shown: tuple[Seen, Seen]) -> None:
    _compare(model, *shown)


@pytest.mark.parametrize("model", _params(STRICT_MODELS))
def test_strict_configuration_as_the_real_server(model: Model, shown_strictly: tuple[Seen, Seen]) -> None:
    _compare(model, *shown_strictly)


@pytest.mark.rows("R1")
def test_file_beside_the_models_is_not_a_model(shown: tuple[Seen, Seen]) -> None:
    assert all("file" not in each.index for each in shown)


def _compare(model: Model, ours: Seen, real: Seen) -> None:
    name = model.name
    if model.ours:
        assert [_bare(line[2]) for line in ours.index[name]] == [model.ours]
        assert ours.index[name] != real.index.get(name)
    elif name in real.told:
        [(version, state, reason)] = ours.index[name]
        assert (version, state) == (None, "UNAVAILABLE")
        # Of a text that is no configuration ours also says what is wrong with it, and of versions what would be right.
        wanted = real.told[name]
        assert _bare(reason) == wanted or _bare(reason).startswith((f"{wanted}: model '{name}': ", f"{wanted}; "))
    else:
        assert ours.index[name] == real.index[name]
        assert _lines(ours.configs[name]) == _lines(real.configs[name])


def _bare(reason: str) -> str:
    return re.sub(f"^(?:{_WORDS}): ", "", reason)


def _lines(text: str) -> str:
    """The lines, sorted: the real server prints the entries of a map in the order of a hash table."""
    return json.dumps(json.loads(text, object_pairs_hook=_sorted_maps))


def _sorted_maps(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    is_map = {key for key, _ in pairs}.isdisjoint({"name", "kind", "dims"})
    return dict(sorted(pairs) if is_map else pairs)
