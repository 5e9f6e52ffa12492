"""The console beside the real Triton, in a real browser: what that server lacks is grey, with a sentence."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.models import write_models
from tests.conformance import servers
from tests.ports import free_ports

SECONDS = 60.0
FLAGS = ("--exit-on-error=false", "--model-control-mode=explicit", "--load-model=*")


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link of a console beside the real server."""
    if reason := servers.install_oracle():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"the real server cannot be installed: {reason}")
    folder = tmp_path_factory.mktemp("triton")
    repository = write_models(folder / "models")
    with servers.Server("real", [*servers.real_command(), *FLAGS], repository, folder / "log") as real:
        real.wait()
        command = [sys.executable, "-m", "halimede", "console", f"127.0.0.1:{real.http}"]
        command += [f"--metrics-url=127.0.0.1:{real.metrics}", f"--console-port={free_ports(1)[0]}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
            assert console.stdout is not None
            try:
                yield console.stdout.readline().split()[-1]
            finally:
                console.terminate()
                assert console.wait(SECONDS) == 0


@pytest.fixture
def page(link: str, open_page: Callable[..., Page]) -> Page:
    made = open_page(link)
    made.get_by_role("table", name="Models").wait_for()
    return made


def go(page: Page, route: str) -> None:
    page.evaluate("route => { location.hash = route }", route)


def send(page: Page) -> None:
    page.get_by_role("button", name="Send").click()


def test_models_with_their_states_and_reasons(page: Page) -> None:
    expect(page.get_by_text("triton 2.51.0")).to_be_visible()
    expect(page.locator(".row").filter(has_text="numbers")).to_contain_text("ready")
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("unable to find backend library")


@pytest.mark.parametrize(
    ("route", "sentence"),
    [
        ("/traces", "This server does not show its traces."),
        ("/logs", "This server does not show its log."),
        ("/pipelines", "calls of Python models are not known"),
        ("/models/numbers/config", "Only a server that runs Halimede can check its repository."),
        ("/models/numbers", "This server does not tell how busy its instances are."),
    ],
)
def test_what_this_server_lacks_has_a_sentence(page: Page, route: str, sentence: str) -> None:
    go(page, route)
    expect(page.get_by_text(sentence)).to_be_visible()


def test_pages_and_buttons_without_a_use_are_grey(page: Page) -> None:
    for name in ("Traces", "Log"):
        link = page.get_by_role("link", name=name)
        expect(link).to_have_class("lacks")
        expect(link).to_have_attribute("title", "This server does not show it")
    go(page, "/models/numbers/config")
    expect(page.get_by_role("button", name="Check", exact=True)).to_be_disabled()


@pytest.mark.parametrize(
    ("model", "answer"),
    [("numbers", "FP32 [1, 4]"), ("animals", "owl"), ("talker", "Hello, world"), ("counter", "INT32 [1, 1]")],
)
def test_models_answer(page: Page, model: str, answer: str) -> None:
    go(page, f"/models/{model}/try")
    send(page)
    expect(page.get_by_role("region", name="Answer").locator(".outputs, .tokens").first).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_contain_text(answer)


def test_error_of_a_model_is_shown(page: Page) -> None:
    go(page, "/models/fails/try")
    send(page)
    expect(page.get_by_role("alert")).to_contain_text("no weights today")


def test_rates_of_other_clients_arrive(page: Page) -> None:
    go(page, "/models/words/try")
    send(page)
    go(page, "/models/words")
    expect(page.locator(".stats > div").filter(has_text="Requests in all").locator("dd")).to_have_text("1")


def test_model_is_unloaded_and_loaded_with_an_edited_configuration(page: Page) -> None:
    go(page, "/models/words")
    page.get_by_role("button", name="Unload").click()
    expect(page.locator(".facts .state")).to_have_text("not loaded")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(".facts .state")).to_have_text("ready")
    go(page, "/models/words/config")
    page.get_by_role("button", name="Edit and load").click()
    editor = page.get_by_label("Configuration as JSON")
    editor.fill(editor.input_value().replace('"max_batch_size": 8', '"max_batch_size": 16'))
    page.get_by_role("button", name="Load with this").click()
    expect(page.locator(".entry").filter(has_text="max_batch_size").locator(".value")).to_have_text("16")


def test_settings_are_changed(page: Page) -> None:
    go(page, "/settings")
    page.get_by_label("Verbose up to level").fill("1")
    form = page.get_by_role("form", name="Log")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("status")).to_have_text("saved")
