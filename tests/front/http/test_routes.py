"""Requests beside the routes: other methods, and paths that only look like one."""

import pytest

from tests.front.http_fakes import Rig


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/models/m/generate"), ("PUT", "/v2/logging")])
def test_route_has_its_methods(method: str, path: str) -> None:
    assert Rig().ask(method, path).answer[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/m/generate_streams",
        "/v2/models/m/generate/",
        "/v2/repository",
        "/v2/systemsharedmemory",
    ],
)
def test_path_beside_the_routes_is_not_found(path: str) -> None:
    assert Rig().ask("GET", path).answer[0] == 404
