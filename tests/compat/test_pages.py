"""The pages for browsers, over HTTP: who gets them, what they hold, and the commands that `/docs` shows."""

import json
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model
from tests.wire.test_html import Reader

LIMIT = 30.0
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that a folder can have."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with the model MODEL, to which the commands of `/docs` go, and models with bad names."""
    folder = tmp_path_factory.mktemp("pages")
    write_model(folder / "models", "MODEL", "FP32")
    write_model(folder / "models", HOSTILE, "FP32")
    (folder / "models" / '"><script>alert(2)<' / "1").mkdir(parents=True)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false")
    with Serving(folder / "models", folder / "log", *flags) as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0
        text = serving.log_text()
        assert "Traceback" not in text
        assert not re.search(r"^E\d.*(page|favicon)", text, re.MULTILINE)


def ask(serving: Serving, path: str, accept: str = BROWSER, **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", serving.http_port, timeout=LIMIT)
    connection.request("GET", path, headers={"Accept": accept, **headers})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_browser_gets_a_page_with_the_models(serving: Serving) -> None:
    answer, text = ask(serving, "/")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
    read = Reader(text)
    assert "MODEL1READY" in read.text
    hrefs = [value for name, value in read.attributes if name == "href"]
    assert {"/docs", f"http://127.0.0.1:{serving.metrics_port}/metrics", "/v2/models/MODEL/versions/1"} <= set(hrefs)


def test_links_of_the_page_lead_somewhere(serving: Serving) -> None:
    for name, link in Reader(ask(serving, "/")[1]).attributes:
        if name == "href" and link is not None and link.startswith("/"):
            assert ask(serving, link)[0].status == 200, link
    assert "nv_inference_count" in serving.metrics()


def test_names_of_folders_are_text(serving: Serving) -> None:
    text = ask(serving, "/")[1]
    read = Reader(text)
    assert HOSTILE in read.text
    assert '"><script>alert(2)<' in read.text
    assert not {"img", "script"} & set(read.elements)
    assert not [name for name, _ in read.attributes if name.startswith("on")]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing(serving: Serving, path: str) -> None:
    read = Reader(ask(serving, path)[1])
    assert not {"script", "img", "link", "iframe", "form", "object"} & set(read.elements)
    assert not [name for name, _ in read.attributes if name in ("src", "style", "action")]


def test_curl_gets_the_answer_of_triton(serving: Serving) -> None:
    answer, text = ask(serving, "/", "*/*")
    assert (answer.status, text) == (404, '{"error":"Not Found"}')
    assert ask(serving, "/favicon.ico")[0].status == 404


def test_docs_have_every_operation(serving: Serving) -> None:
    status, document = serving.ask("/v2/openapi.json")
    assert status == 200
    text = Reader(ask(serving, "/docs")[1]).text
    for path, members in document["paths"].items():
        for method in members.keys() - {"parameters"}:
            assert f"{method.upper()}{path}{members[method]['summary']}" in text
    for schema in document["components"]["schemas"]:
        assert schema in text


def examples(serving: Serving) -> list[str]:
    return [unescape(each) for each in re.findall(r"<pre><code>(.*?)</code>", ask(serving, "/docs")[1])]


REFUSED = {
    "/REPOSITORY/models/": 501,  # repositories cannot be named
    "sharedmemory/region/REGION/status": 404,  # there are none
    "register": 501,  # the server was not started with --allow-client-shm
}


def test_commands_of_the_docs_work(serving: Serving) -> None:
    commands = examples(serving)
    assert len(commands) == sum(
        len(members.keys() - {"parameters"}) for members in serving.ask("/v2/openapi.json")[1]["paths"].values()
    )
    # Unloading comes last.
    for command in sorted(commands, key=lambda line: "unload" in line):
        assert f" http://127.0.0.1:{serving.http_port}/v2" in command
        shown = command.replace("curl", "curl -s -o /dev/null -w '%{http_code}'", 1)
        done = subprocess.run(shown, shell=True, capture_output=True, text=True, timeout=LIMIT, check=True)
        wanted = next((status for part, status in REFUSED.items() if part in command), 200)
        assert done.stdout == str(wanted), command


@pytest.mark.parametrize(
    ("apis", "status", "shown"), [("model-repository", 200, False), ("metadata", 403, False), ("logging", 200, True)]
)
def test_restricted_apis_are_not_shown(tmp_path: Path, apis: str, status: int, shown: bool) -> None:
    write_model(tmp_path / "models", "hidden", "FP32")
    flag = f"--http-restricted-api={apis}:the-key=v"
    with Serving(tmp_path / "models", tmp_path / "log", flag) as serving:
        serving.wait_until_live()
        answer, text = ask(serving, "/")
        assert (answer.status, "hidden" in text) == (status, shown)
        answer, text = ask(serving, "/", **{"the-key": "v"})
        assert (answer.status, "hidden" in text) == (200, True)
        assert json.loads(ask(serving, "/", "*/*")[1]) == {"error": "Not Found"}
        assert serving.stop() == 0


def test_metrics_on_the_http_port_have_a_link_there(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m", "FP32")
    flags = ("--http-metrics=true", "--allow-metrics=false")
    with Serving(tmp_path / "models", tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        assert '<a href="/metrics">' in ask(serving, "/")[1]
        assert "nv_inference_count" in ask(serving, "/metrics")[1]
        assert serving.stop() == 0


def test_server_without_metrics_has_no_link_to_them(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m", "FP32")
    with Serving(tmp_path / "models", tmp_path / "log", "--allow-metrics=false") as serving:
        serving.wait_until_live()
        assert "Metrics" not in ask(serving, "/")[1]
        assert serving.stop() == 0
