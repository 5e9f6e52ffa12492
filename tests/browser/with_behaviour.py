"""The console in a real browser beyond its pages: a server that goes away, attacks, many models, accessibility."""

import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Console
from tests.compat.serving import write_model
from tests.ports import free_ports

MANY = 1000
SECONDS = 60.0
ROUTES = {
    "models": "/",
    "model": "/models/numbers",
    "configuration": "/models/numbers/config",
    "try": "/models/animals/try",
    "pipelines": "/pipelines",
    "traces": "/traces",
    "log": "/logs",
    "settings": "/settings",
}


def test_server_that_goes_away_and_comes_back(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    repository = tmp_path / "models"
    write_model(repository, "same", "INT32")
    first = Console(tmp_path, repository)
    with first.server:
        page = open_page(first.link)
        expect(page.locator(".connection .state")).to_have_text("live")
        assert first.server.stop() == 0
    expect(page.get_by_role("alert")).to_contain_text("The console does not answer.")
    expect(page.locator(".row").filter(has_text="same")).to_be_visible()
    second = Console(tmp_path, repository, first.port)
    with second.server:
        expect(page.locator(".connection .state")).to_have_text("live")
        expect(page.get_by_role("alert")).to_have_count(0)
        assert second.server.stop() == 0


@contextmanager
def site(content: str) -> Iterator[str]:
    """A page of another origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


ATTACK = """async ([url, token]) => {
  const tries = {
    read: () => fetch(url + "/api/v2/models/numbers/config"),
    events: () => fetch(url + "/api/events"),
    change: () => fetch(url + "/api/v2/repository/models/numbers/unload", { method: "POST", body: "{}" }),
    withToken: () => fetch(url + "/api/v2/repository/models/numbers/unload",
      { method: "POST", body: "{}", headers: { Authorization: "Bearer " + token } }),
    script: () => import(url + "/js/store.js"),
  };
  const got = {};
  for (const [name, go] of Object.entries(tries)) {
    try {
      const answer = await go();
      got[name] = answer.ok === undefined ? "module" : String(answer.status);
    } catch {
      got[name] = "nothing";
    }
  }
  await fetch(url + "/api/v2/repository/models/numbers/unload", { method: "POST", mode: "no-cors", body: "{}" })
    .then((answer) => { got.blind = answer.type; }, () => { got.blind = "nothing"; });
  const frame = document.createElement("iframe");
  frame.src = url;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; });
  try { got.frame = frame.contentDocument ? "document" : "nothing"; } catch { got.frame = "nothing"; }
  return got;
}"""


def test_page_of_another_origin_gets_and_changes_nothing(console: Console, open_page: Callable[..., Page]) -> None:
    with site("<title>harmless</title>") as origin:
        page = open_page(origin, strict=False)
        got = page.evaluate(ATTACK, [console.url, console.token])
    assert {name: what for name, what in got.items() if name != "blind"} == dict.fromkeys(
        ("read", "events", "change", "withToken", "script", "frame"), "nothing"
    )
    assert console.server.status("/v2/models/numbers/ready") == 200, "the blind request had no effect"


def test_name_that_was_rebound_to_this_machine_gets_nothing(console: Console, browser: Browser) -> None:
    """To the browser this page has the origin of the console, because a stranger's DNS answers with its address."""
    rules = "--host-resolver-rules=MAP rebound.example 127.0.0.1"
    made = browser.browser_type.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", rules])
    try:
        page = made.new_page()
        answer = page.goto(f"http://rebound.example:{console.port}/")
        assert answer is not None
        assert answer.status == 403
        expect(page.locator("body")).to_contain_text("the console is not known by the name 'rebound.example")
        statuses = page.evaluate(
            """async (token) => {
              const headers = { Authorization: "Bearer " + token };
              const change = { method: "POST", headers, body: "{}" };
              const got = await fetch("/api/v2/models/numbers/config", { headers });
              const changed = await fetch("/api/v2/repository/models/numbers/unload", change);
              return [got.status, changed.status];
            }""",
            console.token,
        )
    finally:
        made.close()
    assert statuses == [403, 403]
    assert console.server.status("/v2/models/numbers/ready") == 200


def test_first_paint_waits_for_one_style_sheet(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page(console.link)
    page.get_by_role("table", name="Models").wait_for()
    waited = page.evaluate(
        "() => performance.getEntriesByType('resource').filter((each) => each.renderBlockingStatus === 'blocking')"
        ".map((each) => new URL(each.name).pathname)"
    )
    assert waited == ["/console.css"]


def test_thousand_models_scroll_and_are_searched(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    repository = tmp_path / "models"
    for number in range(MANY):
        write_model(repository, f"model_{number:04}", "INT32")
    made = Console(tmp_path, repository)
    with made.server:
        page = open_page(made.link)
        expect(page.get_by_role("heading", name=f"{MANY:,} models")).to_be_visible()
        assert page.locator(".rows .row").count() < 60
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.locator(".row").filter(has_text="model_0999")).to_be_visible()
        assert page.locator(".rows .row").count() < 60
        # How long the page computes for two seconds of events: with 16 ms of each second a list scrolls smoothly.
        busy = page.evaluate(
            """async () => {
              let busy = 0;
              const add = (list) => list.getEntries().forEach((each) => { busy += each.duration; });
              const watch = new PerformanceObserver(add);
              watch.observe({ entryTypes: ["longtask"] });
              await new Promise((resolve) => setTimeout(resolve, 2500));
              return busy;
            }"""
        )
        assert busy < 500, f"{busy} ms of long tasks"
        page.get_by_label("Search models").fill("0512")
        expect(page.locator(".rows .row")).to_have_count(1)
        assert made.server.stop() == 0


def test_keyboard_reaches_everything(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    link = page.get_by_role("link", name="numbers").first
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="numbers")).to_be_visible()
    expect(page.locator("#content")).to_be_focused()


OUTSIDE = """() => {
  const right = (part) => part.getBoundingClientRect().right;
  return [...document.querySelectorAll(".grid > .head > *, .grid .row > *, .panel > *, .tile > *, .rail nav > *")]
    .filter((part) => right(part) > right(part.closest(".grid, .panel, .tile, nav"))).map((part) => part.textContent);
}"""
"""What lies beyond the right side of their box."""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit(
    console: Console, open_page: Callable[..., Page], scheme: str, width: int
) -> None:
    """Checks every page with axe-core. HALIMEDE_SCREENSHOTS names a folder that gets a picture of each."""
    axe = Path(os.environ["HALIMEDE_NODE_MODULES"], "axe-core", "axe.min.js").read_text()
    pictures = os.environ.get("HALIMEDE_SCREENSHOTS")
    page = open_page(console.link, color_scheme=scheme, viewport={"width": width, "height": 860})
    page.get_by_role("table", name="Models").wait_for()
    for name, route in ROUTES.items():
        page.evaluate("route => { location.hash = route }", route)
        expect(page.locator(".skeleton")).to_have_count(0)
        page.wait_for_function("() => document.querySelector('main h1, main .tiles, main .empty') !== null")
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} overflows"
        assert page.evaluate(OUTSIDE) == [], f"{name} has parts outside of their boxes"
        page.evaluate(f"() => {{ {axe} }}")
        found = page.evaluate(
            "async () => (await axe.run(document)).violations.map((each) =>"
            " `${each.id}: ${each.help}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`)"
        )
        assert found == [], f"{name}, {scheme}, {width}"
        if pictures:
            page.screenshot(path=Path(pictures, f"console-{name}-{scheme}-{width}.png"))


def test_console_beside_a_server_says_what_that_server_lacks(
    console: Console, tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "halimede", "console", console.server.http_url, f"--console-port={port}"]
    metrics = f"--metrics-url=127.0.0.1:{console.server.metrics_port}"
    with subprocess.Popen([*command, metrics], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            link = process.stdout.readline().split()[-1]
            page = open_page(link)
            expect(page.locator(".row").filter(has_text="numbers")).to_contain_text("ready")
            for route, sentence in (
                ("/logs", "This server does not show its log."),
                ("/traces", "This server does not show its traces."),
                ("/models/numbers/config", "Only a server that runs Halimede can check its repository."),
            ):
                page.evaluate("route => { location.hash = route }", route)
                expect(page.get_by_text(sentence)).to_be_visible()
            page.evaluate("route => { location.hash = route }", "/models/animals/try")
            page.get_by_role("button", name="Send").click()
            expect(page.locator(".outputs .bars .label")).to_have_count(3)
            page.evaluate("route => { location.hash = route }", "/models/talker/try")
            page.get_by_role("button", name="Send").click()
            expect(page.locator(".tokens")).to_have_text("Hello, world ")
        finally:
            process.terminate()
            assert process.wait(SECONDS) == 0
