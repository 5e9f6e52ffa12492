"""A started server with a console, and a real browser. Debian's chromium is driven by playwright; `make test-console`
installs both. HALIMEDE_NODE_MODULES names the folder with axe-core."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.models import write_models
from tests.compat.serving import Serving
from tests.ports import free_ports

if TYPE_CHECKING:  # other targets collect this folder without playwright
    from playwright.sync_api import Browser, Page

MILLISECONDS = 30_000
"""The longest wait for anything in the page."""


class Console:
    """A server with a console at `url`, in explicit mode with all models loaded."""

    def __init__(self, folder: Path, repository: Path, port: int = 0, *flags: str) -> None:
        self.port = port or free_ports(1)[0]
        self.url = f"http://localhost:{self.port}"
        log = folder / f"log{self.port}{len(list(folder.glob('log*')))}"
        self.server = Serving(
            repository,
            log,
            f"--console-port={self.port}",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--exit-on-error=false",
            "--metrics-config=summary_latencies=true",
            *flags,
        ).wait_until_live()
        self.server.until(lambda: self._token() != "", "printed no link")
        self.token = self._token()

    def _token(self) -> str:
        found = re.search(r"#token=([\w-]+)", self.server.log_text())
        return found[1] if found else ""

    @property
    def link(self) -> str:
        return f"{self.url}/#token={self.token}"


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=MILLISECONDS)
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing")
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("browser")
    made = Console(folder, write_models(folder / "models"))
    with made.server:
        yield made


@pytest.fixture
def open_page(browser: "Browser") -> "Iterator[Callable[..., Page]]":
    """Opens a page in a context of its own. At the end the console may have reported no error, unless it is a page that
    must fail (`strict`)."""
    errors: list[str] = []
    contexts = []

    def open_one(url: str, route: str = "", strict: bool = True, **options: Any) -> "Page":
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console", lambda line: errors.append(line.text) if strict and "Content Security" in line.text else None
        )
        page.goto(url)
        if route:
            page.evaluate("route => { location.hash = route }", route)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(console: Console, open_page: "Callable[..., Page]") -> "Page":
    """The console, opened by its link."""
    made = open_page(console.link)
    made.get_by_role("table", name="Models").wait_for()
    return made
