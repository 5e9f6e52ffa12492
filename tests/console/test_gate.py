"""Who may use the console: names, other sites, the token."""

import pytest

from halimede.console.gate import Gate, TokenKeys, is_loopback
from halimede.transport.http1.headers import Headers

TOKEN = "s3cret"
HOST = "localhost:8003"


def refusal(gate: Gate, method: str, target: str, **headers: str) -> str:
    sent = Headers()
    for name, value in {"host": HOST, **headers}.items():
        sent.add(name.replace("_", "-").encode(), value.encode())
    return gate.refusal(method.encode(), target.encode(), sent)


GATE = Gate(TokenKeys(TOKEN, True), frozenset({"gpu.example.org"}))


@pytest.mark.parametrize(
    "host",
    ["localhost:8003", "LOCALHOST", "127.0.0.1:8003", "[::1]:8003", "10.1.2.3", "gpu.example.org:80", "a.localhost"],
)
def test_console_is_known_by_addresses_and_its_names(host: str) -> None:
    assert refusal(GATE, "GET", "/api/events", host=host) == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b", "x@y"])
@pytest.mark.parametrize("target", ["/", "/api/events"])
def test_name_that_dns_could_rebind_gets_nothing_not_even_the_page(host: str, target: str) -> None:
    assert "not known by the name" in refusal(GATE, "GET", target, host=host, authorization=f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_sites_are_refused_even_with_the_token(method: str, headers: dict[str, str]) -> None:
    said = refusal(GATE, method, "/api/v2/models/m/infer", authorization=f"Bearer {TOKEN}", **headers)
    assert said == "pages of other sites cannot use the console"


def test_page_of_the_console_itself_is_no_other_site() -> None:
    own = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin", "authorization": f"Bearer {TOKEN}"}
    assert refusal(GATE, "POST", "/api/v2/models/m/infer", **own) == ""


def test_link_of_another_site_may_lead_to_the_page() -> None:
    assert refusal(GATE, "GET", "/", sec_fetch_site="cross-site") == ""


@pytest.mark.parametrize(
    "given", [{}, {"x_console_token": ""}, {"x_console_token": TOKEN + "x"}, {"x_console_token": "é"}]
)
def test_change_needs_the_token(given: dict[str, str]) -> None:
    assert "needs the token" in refusal(GATE, "POST", "/api/v2/repository/models/m/load", **given)
    assert "needs the token" in refusal(GATE, "DELETE", "/", **given)


def test_reading_needs_the_token_if_others_reach_the_port() -> None:
    exposed = Gate(TokenKeys(TOKEN, False))
    assert "needs the token" in refusal(exposed, "GET", "/api/v2/models/m/config")
    assert refusal(exposed, "GET", "/api/v2/models/m/config", authorization=f"Bearer {TOKEN}") == ""
    assert refusal(GATE, "GET", "/api/v2/models/m/config") == ""


@pytest.mark.parametrize(
    ("address", "only_here"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("host", False)],
)
def test_loopback_addresses_are_told_from_others(address: str, only_here: bool) -> None:
    assert is_loopback(address) is only_here
