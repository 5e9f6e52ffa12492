"""Every page and action of the console in a real browser."""

import json
import struct
import subprocess
import sys
import urllib.error
import urllib.request
import wave
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console
from tests.browser.models import write_models

SECONDS = 60.0


def go(page: Page, route: str) -> None:
    page.evaluate("route => { location.hash = route }", route)


def send(page: Page) -> None:
    page.get_by_role("button", name="Send").click()


def ask(console: Console, model: str, values: list[float], rows: bool = True) -> None:
    """A request of another client. `rows`: the tensor has the dimension of a batch."""
    dims = [1, len(values)] if rows else [len(values)]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": dims, "data": values}
    url = f"http://{console.server.http_url}/v2/models/{model}/infer"
    urllib.request.urlopen(url, json.dumps({"inputs": [tensor]}).encode(), timeout=SECONDS).close()


# ---- models


def test_what_is_wrong_comes_first(page: Page) -> None:
    trouble = page.get_by_role("region", name="Needs attention")
    expect(trouble).to_contain_text("wrong")
    expect(trouble).to_contain_text("nonsense")
    above = page.evaluate(
        "() => document.querySelector('.troubles').getBoundingClientRect().top"
        " < document.querySelector('.grid').getBoundingClientRect().top"
    )
    assert above


def test_list_shows_states_and_live_rates(console: Console, page: Page) -> None:
    row = page.get_by_role("row").filter(has_text="numbers")
    expect(row).to_contain_text("ready")
    expect(page.get_by_role("row").filter(has_text="wrong")).to_contain_text("failed")
    for _ in range(3):
        ask(console, "numbers", [1, 2, 3, 4])
    expect(row.locator("[data-label=p50]")).to_contain_text("s")  # micro- or milliseconds


def test_list_is_searched_filtered_and_sorted(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("pict")
    rows = page.locator(".rows .row")
    expect(rows).to_have_count(1)
    page.get_by_label("Search models").fill("")
    page.get_by_role("button", name="Failed").first.click()
    expect(page.locator(".rows .row").filter(has_text="wrong")).to_have_count(1)
    expect(page.locator(".rows .row").filter(has_text="numbers")).to_have_count(0)
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("columnheader", name="Model").get_by_role("button").click()
    expect(rows.first).to_contain_text("wrong")


def test_token_leaves_the_address_and_is_kept(console: Console, page: Page) -> None:
    assert "token" not in page.url
    page.reload()
    go(page, "/models/numbers/try")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_model_is_unloaded_and_loaded(page: Page) -> None:
    go(page, "/models/words")
    page.get_by_role("button", name="Unload").click()
    expect(page.locator(".facts .state")).to_have_text("not loaded")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(".facts .state")).to_have_text("ready")


def test_failed_model_says_why_and_check_what_to_do(page: Page) -> None:
    go(page, "/models/wrong/config")
    expect(page.get_by_role("alert").first).to_contain_text("nonsense")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("It cannot serve.")).to_be_visible()


def test_activity_is_charted(console: Console, page: Page) -> None:
    go(page, "/models/numbers")
    for _ in range(3):
        ask(console, "numbers", [1, 2, 3, 4])
    expect(page.get_by_role("region", name="Batch sizes")).to_contain_text("executions")
    expect(page.get_by_role("region", name="Instances")).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()


def test_configuration_is_explained_edited_and_loaded(page: Page) -> None:
    go(page, "/models/pictures/config")
    entry = page.locator(".entry").filter(has_text="max_batch_size")
    expect(entry).to_contain_text("Rows that one execution takes at most")
    expect(page.locator(".entry.default")).to_have_count(0)
    page.get_by_label("show defaults").check()
    expect(page.locator(".entry.default").first).to_be_visible()
    page.get_by_role("button", name="Edit and load").click()
    editor = page.get_by_label("Configuration as JSON")
    editor.fill(editor.input_value().replace('"max_batch_size": 8', '"max_batch_size": 16'))
    expect(page.locator(".diff .del")).to_contain_text('"max_batch_size": 8')
    expect(page.locator(".diff .add")).to_contain_text('"max_batch_size": 16')
    page.get_by_role("button", name="Load with this").click()
    expect(page.locator(".entry").filter(has_text="max_batch_size").locator(".value")).to_have_text("16")


def test_configuration_that_cannot_be_loaded_says_why(page: Page) -> None:
    go(page, "/models/words/config")
    page.get_by_role("button", name="Edit and load").click()
    editor = page.get_by_label("Configuration as JSON")
    editor.fill("{")
    expect(page.get_by_text("This is not JSON")).to_be_visible()
    expect(page.get_by_role("button", name="Load with this")).to_be_disabled()
    editor.fill('{"backend": "nothing", "name": "words"}')
    page.get_by_role("button", name="Load with this").click()
    expect(page.get_by_role("alert")).to_contain_text("The model was not loaded")


# ---- try it


def test_newcomer_finds_what_takes_a_picture(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    """In a server that nobody has used."""
    made = Console(tmp_path, write_models(tmp_path / "models"))
    with made.server:
        page = open_page(made.link)
        first = page.get_by_role("region", name="Try a model with")
        expect(first.locator("dt")).to_have_text(["a picture", "a sound", "a text", "numbers"])
        expect(first.get_by_role("link", name="chain")).to_be_visible()
        first.get_by_role("link", name="pictures").click()
        expect(page.get_by_text("Drop or paste a picture")).to_be_visible()
        assert made.server.stop() == 0


DROPPED = """([kind, name]) => {
  const data = new DataTransfer();
  data.items.add(new File(["dropped beside it"], name, { type: "text/plain" }));
  const more = kind === "drop" ? { dataTransfer: data } : { clipboardData: data };
  const event = new (kind === "drop" ? DragEvent : ClipboardEvent)(kind, { bubbles: true, cancelable: true, ...more });
  document.querySelector("h1").dispatchEvent(event);
  return event.defaultPrevented;
}"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_file_is_taken_anywhere_on_the_page(page: Page, kind: str) -> None:
    go(page, "/models/words/try")
    page.get_by_role("button", name="File").click()
    assert page.evaluate(DROPPED, [kind, "some.txt"])
    expect(page.get_by_text("some.txt, 17 B")).to_be_visible()
    send(page)
    expect(page.locator(".outputs pre")).to_have_text(["dropped beside it"])


def test_numbers_and_their_mistakes(page: Page) -> None:
    go(page, "/models/numbers/try")
    page.get_by_role("button", name="Values").click()
    field = page.get_by_role("textbox", name="INPUT0")
    field.fill("1 2 x 4")
    expect(page.get_by_role("alert")).to_contain_text("not a number")
    field.fill("1 2 3")
    expect(page.get_by_role("alert")).to_contain_text("3 values do not fill the shape [4]")
    field.fill("[[1, 2, 3, 4], [5, 6, 7, 8.5]]")
    send(page)
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("FP32 [2, 4]")
    expect(answer).to_contain_text("whole call")


def test_random_values_are_sent(page: Page) -> None:
    go(page, "/models/numbers/try")
    page.get_by_label("rows").fill("3")
    send(page)
    expect(page.get_by_role("region", name="Answer")).to_contain_text("FP32 [3, 4]")


def test_text_and_a_file(page: Page, tmp_path: Path) -> None:
    go(page, "/models/words/try")
    page.get_by_role("textbox", name="INPUT0").fill("grüße\nund mehr")
    send(page)
    expect(page.locator(".outputs pre")).to_have_text(["grüße", "und mehr"])
    page.get_by_role("button", name="File").click()
    (tmp_path / "story.txt").write_text("once upon a time")
    page.get_by_label("File for INPUT0").set_input_files(tmp_path / "story.txt")
    send(page)
    expect(page.locator(".outputs pre")).to_have_text(["once upon a time"])


def test_picture_becomes_a_tensor_and_a_tensor_a_picture(page: Page, tmp_path: Path) -> None:
    (tmp_path / "red.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><rect width="60" height="40" fill="#f00"/></svg>'
    )
    # The browser draws the file itself; PNG needs no library of the tests.
    shot = page.context.new_page()
    shot.set_viewport_size({"width": 60, "height": 40})
    shot.goto((tmp_path / "red.svg").as_uri())
    shot.screenshot(path=tmp_path / "red.png")
    shot.close()
    go(page, "/models/pictures/try")
    page.get_by_label("Picture for INPUT0").set_input_files(tmp_path / "red.png")
    send(page)
    canvas = page.locator(".outputs canvas.picture")
    expect(canvas).to_be_visible()
    pixel = canvas.evaluate("c => Array.from(c.getContext('2d').getImageData(16, 16, 1, 1).data)")
    assert pixel == [255, 0, 0, 255]
    (tmp_path / "no.png").write_text("no picture")
    page.get_by_label("Picture for INPUT0").set_input_files(tmp_path / "no.png")
    expect(page.get_by_role("alert")).to_contain_text("no picture")


def test_sound_becomes_samples_of_one_channel_at_the_rate(page: Page, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(struct.pack("<2h", 16384, 0) * 4000)
    go(page, "/models/hears/try")
    page.get_by_label("samples per second").select_option("8000")
    page.get_by_label("Sound for AUDIO").set_input_files(tmp_path / "tone.wav")
    expect(page.get_by_text("4000 samples")).to_be_visible()
    send(page)
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("FP32 [4000]")
    expect(answer).to_contain_text("0.25")
    (tmp_path / "no.wav").write_text("no sound")
    page.get_by_label("Sound for AUDIO").set_input_files(tmp_path / "no.wav")
    expect(page.get_by_role("alert")).to_contain_text("no sound")


def test_classes_have_their_labels(page: Page) -> None:
    go(page, "/models/animals/try")
    page.get_by_role("button", name="Values").click()
    page.get_by_role("textbox", name="INPUT0").fill("0.1 0.2 0.7")
    send(page)
    expect(page.locator(".outputs .bars .label")).to_have_text(["owl", "dog", "cat"])


def test_stream_is_shown_as_it_comes(page: Page) -> None:
    go(page, "/models/talker/try")
    page.get_by_role("textbox", name="PROMPT").fill("one two three")
    send(page)
    expect(page.locator(".tokens")).to_have_text("one two three ")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("3 responses")


def test_sequence_goes_on_and_ends(page: Page) -> None:
    go(page, "/models/counter/try")
    page.get_by_role("button", name="Values").click()
    page.get_by_role("textbox", name="VALUE").fill("5")
    answer = page.locator(".big-value")
    for total in ("5", "10"):
        send(page)
        expect(answer).to_have_text(total)
    expect(page.get_by_label("starts here")).not_to_be_checked()
    page.get_by_label("ends here").check()
    send(page)
    expect(answer).to_have_text("15")
    expect(page.get_by_label("starts here")).to_be_checked()


def test_error_of_a_model_is_shown(page: Page) -> None:
    go(page, "/models/fails/try")
    send(page)
    expect(page.get_by_role("alert")).to_contain_text("no weights today")


@pytest.mark.parametrize("model", ["numbers", "animals", "counter", "talker"])
def test_code_to_copy_runs(page: Page, model: str) -> None:
    go(page, f"/models/{model}/try")
    code = page.get_by_label("Code")
    expect(code).to_contain_text("curl")
    command = code.inner_text()
    answered = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert "error" not in answered.stdout
    assert model in answered.stdout
    for language in ("Python", "Python, gRPC"):
        page.get_by_role("button", name=language, exact=True).click()
        program = code.inner_text()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{program}\n{done.stderr}"
        assert done.stdout


# ---- the other pages


def test_pipeline_is_drawn_with_live_rates(console: Console, page: Page) -> None:
    go(page, "/pipelines")
    graph = page.get_by_role("region", name="Graph of chain")
    expect(graph).to_contain_text("between")
    ask(console, "chain", [1, 2, 3, 4])
    expect(graph.locator(".edge.live").first).to_be_attached()


def test_traces_are_recorded_and_shown(console: Console, page: Page) -> None:
    go(page, "/traces")
    page.get_by_role("button", name="Record requests").click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    ask(console, "chain", [1, 2, 3, 4])
    first = page.get_by_role("group", name="Traces").get_by_role("button").filter(has_text="chain").first
    first.click()
    fall = page.get_by_role("region", name="The chosen trace")
    expect(fall.locator(".label").filter(has_text="numbers")).to_have_count(2)
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("button", name="Record requests")).to_be_visible()


def test_failed_request_is_among_the_traces_with_its_reason(console: Console, page: Page) -> None:
    go(page, "/traces")
    page.get_by_role("button", name="Record requests").click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    with pytest.raises(urllib.error.HTTPError):
        ask(console, "fails", [1, 2, 3, 4], rows=False)
    page.get_by_role("button", name="Failed").click()
    page.get_by_role("group", name="Traces").get_by_role("button").filter(has_text="fails").first.click()
    expect(page.get_by_role("region", name="The chosen trace")).to_contain_text("no weights today")
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("button", name="Record requests")).to_be_visible()


def test_calls_of_a_python_model_are_drawn(console: Console, page: Page) -> None:
    go(page, "/traces")
    page.get_by_role("button", name="Record requests").click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    ask(console, "caller", [1, 2, 3, 4])
    go(page, "/pipelines")
    graph = page.get_by_role("region", name="Graph of caller")
    expect(graph).to_contain_text("1 call")
    expect(graph).to_contain_text("numbers")
    go(page, "/traces")
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("button", name="Record requests")).to_be_visible()


def test_log_is_filtered(page: Page) -> None:
    go(page, "/logs")
    lines = page.get_by_role("log")
    expect(lines).to_contain_text("Started Console")
    page.get_by_label("Search the log").fill("nonsense")
    expect(lines).not_to_contain_text("Started Console")
    expect(lines).to_contain_text("nonsense")


def test_settings_are_changed(console: Console, page: Page) -> None:
    go(page, "/settings")
    field = page.get_by_label("Verbose up to level")
    field.fill("1")
    form = page.get_by_role("form", name="Log")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("status")).to_have_text("saved")
    assert console.server.ask("/v2/logging")[1]["log_verbose_level"] == 1
    field.fill("0")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("button", name="Save")).to_be_disabled()


def test_without_the_token_everything_is_read_and_nothing_changed(
    console: Console, open_page: Callable[..., Page]
) -> None:
    page = open_page(console.url, "/models/numbers")
    expect(page.get_by_role("button", name="Unload")).to_be_disabled()
    go(page, "/models/numbers/try")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_label("Token or link").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("alert")).to_contain_text("does not take it")
    page.get_by_label("Token or link").fill(console.link)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
