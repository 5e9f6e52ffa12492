"""`docs/auth.md`, pasted: each command runs as written, on other ports, and must print what the page shows."""

import re
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from halimede.identities.file import parse
from halimede.identities.guard import NO_KEY, WRONG_KEY
from halimede.identities.keys import MALFORMED, new_key
from halimede.identities.roles import ROLES
from tests.compat.serving import Serving
from tests.examples.test_tour import ROOT, Step, check, run, steps

PAGE = (ROOT / "docs" / "auth.md").read_text()
SECTIONS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


def commands() -> Iterator[Step]:
    for section in SECTIONS:
        yield from (step for step in steps(section, "auth.md"))


def test_commands_of_the_page(tmp_path: Path) -> None:
    flags = re.search(r"^\.venv/bin/halimede serve --model-repository=models (.*)$", PAGE, re.MULTILINE)
    assert flags is not None
    words = flags[1].replace("'", "").replace("--auth=auth.toml", f"--auth={tmp_path}/auth.toml").split()
    serving = None
    with ExitStack() as stack:
        for step in commands():
            if serving is None and "localhost" in step.command:
                serving = stack.enter_context(Serving(tmp_path / "models", tmp_path / "log", *words))
                serving.wait_until_live()
            check(step, run(step.command, tmp_path, serving))
        assert serving is not None
        assert serving.stop() == 0


def test_example_of_the_file() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(text)
    _, stored = new_key()
    (billing,) = parse(re.sub(r'"[^"]*sha256[^"]*"', f'"{stored}"', text)).values()
    assert (billing.name, billing.rate, billing.burst, billing.concurrent) == ("billing", 100, 200, 8)
    assert billing.expires is not None


def test_tables_of_the_page() -> None:
    """The page has all roles and the texts that clients get."""
    assert re.findall(r"^\| `(\w+)` \| (?!.*401)", PAGE, re.MULTILINE)[: len(ROLES)] == list(ROLES)
    for text in (NO_KEY, WRONG_KEY, MALFORMED):
        assert f"`{text}`" in PAGE
