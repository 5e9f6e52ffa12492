"""The pages for people: who gets them, and what restrictions leave of them."""

import pytest

from halimede.engine_port import IndexEntry, RepositoryIndex, ServerInfo, ServerMetadata, ServerReady
from halimede.errors import Unavailable
from halimede.front.access import Access
from halimede.front.http.handling import JSON, PLAIN
from halimede.front.http.pages import wants_html
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsScrapes
from halimede.front.offload import at_once
from halimede.wire.html import FIELDS
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, Rig, no_timer
from tests.wire.test_html import HOSTILE

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
NOT_FOUND = (404, PLAIN, b'{"error":"Not Found"}')
REFUSED = (403, PLAIN, b'{"error":"This API is restricted, expecting header \'the-key\'"}')
MODELS = [IndexEntry("secret", 1, "READY"), IndexEntry(HOSTILE, 1, "UNAVAILABLE", HOSTILE)]


def rig(*restricted: str, metrics: str = "", on_http: bool = False) -> Rig:
    made = Rig()
    scrapes = MetricsScrapes(made.port, no_timer, at_once) if on_http else None
    access = Access(dict.fromkeys(restricted, ("the-key", "v")))
    made.front = HttpService(
        made.port, made.offload, MAX_INPUT_SIZE, access, scrapes=scrapes, metrics_at=lambda: metrics
    )
    made.port.answers = {
        ServerMetadata(): ServerInfo("mine", "1.2.3", ()),
        ServerReady(): True,
        RepositoryIndex(): MODELS,
    }
    return made


def home(made: Rig, **headers: str) -> str:
    status, fields, body = made.ask("GET", "/", b"", accept=BROWSER, **headers).answer
    assert (status, fields) == (200, FIELDS + b"Vary: Accept\r\n")
    return body.decode()


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("application/json, TEXT/HTML;q=0.2", True),
        ("text/html;level=1;q=0.0", False),
        ("text/html; q=0, */*", False),
        ("text/html;q=0.5;x=1", True),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_only_who_names_html_gets_a_page(accept: str, wanted: bool) -> None:
    assert wants_html(accept.encode()) == wanted
    assert (rig().ask("GET", "/", accept=accept).status == 200) == wanted


def test_others_get_the_answer_for_an_unknown_path() -> None:
    assert rig().ask("GET", "/").answer == NOT_FOUND
    assert rig().ask("POST", "/", b"x", accept=BROWSER).answer == NOT_FOUND
    assert rig("metadata").ask("GET", "/", accept="*/*").answer == NOT_FOUND
    assert rig().ask("GET", "/favicon.ico", accept=BROWSER).answer == NOT_FOUND


def test_home_shows_the_server_and_its_models() -> None:
    page = home(rig())
    assert "mine, version 1.2.3" in page
    assert '<a href="/v2/models/secret/versions/1">secret</a>' in page
    assert "<img" not in page


def test_models_are_for_those_who_may_list_the_repository() -> None:
    assert "secret" not in home(rig("model-repository"))
    assert "secret" not in home(rig("model-repository"), the_key="x")
    assert "secret" in home(rig("model-repository"), the_key="v")


def test_readiness_is_for_those_who_may_ask_for_it() -> None:
    assert ">ready<" in home(rig("model-repository"))
    assert ">ready<" not in home(rig("model-repository", "health"))


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_are_metadata(path: str) -> None:
    assert rig("metadata").ask("GET", path, accept=BROWSER).answer == REFUSED
    assert rig("metadata").ask("GET", path, accept=BROWSER, the_key="v").status == 200


@pytest.mark.parametrize(
    ("metrics", "host", "link"),
    [
        ("0.0.0.0:8002", "box.example:8000", "http://box.example:8002/metrics"),
        ("[::]:8002", "[fe80::1]:8000", "http://[fe80::1]:8002/metrics"),
        ("127.0.0.1:9", "box", "http://127.0.0.1:9/metrics"),
        ("0.0.0.0:8002", 'x"><script>', "http://localhost:8002/metrics"),
        ("0.0.0.0:8002", "", "http://localhost:8002/metrics"),
    ],
)
def test_metrics_link_leads_to_their_port(metrics: str, host: str, link: str) -> None:
    assert f'<a href="{link}">Metrics</a>' in home(rig(metrics=metrics), host=host)


def test_metrics_link_is_there_only_if_metrics_are() -> None:
    assert "Metrics" not in home(rig())
    assert '<a href="/metrics">Metrics</a>' in home(rig(on_http=True, metrics="0.0.0.0:8002"))
    assert "Metrics" not in home(rig("statistics", on_http=True))


def test_server_that_is_exiting_says_so() -> None:
    made = rig()
    made.port.answers[ServerReady()] = Unavailable("Server exiting")
    assert made.ask("GET", "/", accept=BROWSER).answer == (503, JSON, b'{"error":"Server exiting"}')


def test_docs_are_a_page_whatever_the_client_accepts() -> None:
    exchange = rig().ask("GET", "/docs", host="box:8000")
    assert (exchange.status, exchange.answer[1]) == (200, FIELDS)
    assert b"curl http://box:8000/v2/models/MODEL/infer -d" in exchange.body_sent
    assert rig().ask("POST", "/docs").answer == (405, JSON, b'{"error":"Method Not Allowed"}')


def test_page_that_cannot_be_written_is_an_error() -> None:
    made = rig()
    made.port.answers[RepositoryIndex()] = [None]
    assert made.ask("GET", "/", accept=BROWSER).answer == (
        500,
        JSON,
        b'{"error":"the server failed to write the page"}',
    )


def test_page_waits_for_the_engine() -> None:
    made = rig()
    made.port.hold = True
    exchange = FakeExchange("GET", "/", accept=BROWSER)
    made.front.handle(exchange)
    for _ in range(3):
        assert not exchange.answers
        made.port.answer_held()
    assert exchange.status == 200
