"""Routes of the contract that are not served yet: they say so, and not that the path is wrong."""

import pytest

from halimede.front.http_handling import JSON
from tests.front.http_fakes import Rig


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/m/generate"),
        ("POST", "/v2/models/m/versions/2/generate_stream"),
    ],
)
def test_route_that_is_not_served_yet_says_so(method: str, path: str) -> None:
    assert Rig().ask(method, path).answer == (501, JSON, b'{"error":"%s is not supported yet"}' % path.encode())


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v2/models/m/generate"), ("PUT", "/v2/logging")],
)
def test_route_that_is_not_served_yet_has_its_methods(method: str, path: str) -> None:
    assert Rig().ask(method, path).answer[0] == 405


@pytest.mark.parametrize("path", ["/v2/models/m/versions/1/trace/setting", "/v2/repository", "/v2/systemsharedmemory"])
def test_path_beside_the_routes_is_not_found(path: str) -> None:
    assert Rig().ask("GET", path).answer[0] == 404
