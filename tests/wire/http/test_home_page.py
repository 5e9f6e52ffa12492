"""The start page: what it shows of the server and its models, and that names are only names."""

from collections.abc import Sequence

from halimede.engine_port import IndexEntry, ServerInfo
from halimede.wire.http.home_page import MAX_ROWS, Home, home_page
from tests.wire.test_html import HOSTILE, Reader


def read(models: Sequence[IndexEntry] | None, ready: bool | None = True, metrics: str = "", name: str = "t") -> Reader:
    return Reader(home_page(Home(ServerInfo(name, "1.2", ()), ready, models, metrics)).decode())


def links(page: Reader) -> list[str | None]:
    return [value for name, value in page.attributes if name == "href"]


def test_models_are_shown_with_version_state_and_reason() -> None:
    page = read([IndexEntry("a", 3, "READY"), IndexEntry("b", 1, "UNAVAILABLE", "no file"), IndexEntry("c")])
    assert page.elements.count("tr") == 4
    assert "a3READY" in page.text
    assert "b1UNAVAILABLEno file" in page.text
    assert "cnot loaded" in page.text
    assert "/v2/models/a/versions/3" in links(page)
    assert not any("/b/" in str(link) for link in links(page))


def test_names_and_reasons_of_models_are_text() -> None:
    page = read([IndexEntry(HOSTILE, 1, "READY", HOSTILE)], name=HOSTILE)
    assert page.text.count(HOSTILE) == 4
    assert not {"img", "script"} & set(page.elements)
    assert not [link for link in links(page) if "<" in str(link)]


def test_name_that_is_no_path_has_no_link() -> None:
    assert not [link for link in links(read([IndexEntry("a b", 1, "READY")])) if "models" in str(link)]


def test_restricted_parts_are_left_out() -> None:
    page = read(None, ready=None)
    assert "table" not in page.elements
    assert "restricted" in page.text
    assert "ready" not in page.text


def test_readiness_is_shown() -> None:
    assert "version 1.2, ready" in read([]).text
    assert "version 1.2, not ready" in read([], ready=False).text


def test_metrics_have_a_link_where_there_are_some() -> None:
    assert "http://h:8002/metrics" in links(read([], metrics="http://h:8002/metrics"))
    assert "Metrics" not in read([]).text


def test_long_lists_are_cut() -> None:
    page = read([IndexEntry(f"m{i}", 1, "READY") for i in range(MAX_ROWS + 5)])
    assert page.elements.count("tr") == MAX_ROWS + 1
    assert f"The first {MAX_ROWS} of {MAX_ROWS + 5} rows" in page.text
