"""docs/limits.md is made from the sources, and is up to date."""

from pathlib import Path

import pytest

from tools import limits


def test_page_of_limits_is_up_to_date() -> None:
    assert limits.PAGE.read_text() == limits.page(), "run `python -m tools.limits --write`"


def declared(folder: Path, source: str) -> list[limits.Limit]:
    (folder / "package").mkdir()
    (folder / "package" / "module.py").write_text(source)
    return list(limits.constant_limits(folder / "package"))


def test_limit_is_a_constant_whose_docstring_says_what_is_beyond(tmp_path: Path) -> None:
    source = '''
MAX_THINGS: Final = 10_000
"""Things of a request.
Beyond: INVALID_ARGUMENT."""
OTHER = 5
"""No limit."""

class Reader:
    MAX_HEAD_BYTES: ClassVar[int] = 1 << 14
    """Bytes of a head. Beyond: the connection ends."""
'''
    assert declared(tmp_path, source) == [
        limits.Limit("package.module", "MAX_THINGS", "10,000", "Things of a request.", "INVALID_ARGUMENT."),
        limits.Limit("package.module", "MAX_HEAD_BYTES", "16 KiB", "Bytes of a head.", "the connection ends."),
    ]


def test_limit_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MAX_THINGS is not a number"):
        declared(tmp_path, 'MAX_THINGS = other()\n"""Things. Beyond: 400."""\n')
