"""The import of a large program: what is different while it lasts, and that all of it is as before afterwards."""

import gc

import pytest

from halimede.platform.imports import quick_imports

SETTING = "OPENBLAS_THREAD_TIMEOUT"


def test_collector_rests_and_threads_of_numpy_sleep_soon_meanwhile() -> None:
    environment = {"LANG": "C"}
    with quick_imports(environment):
        assert not gc.isenabled()
        assert 1 << int(environment[SETTING]) < 1 << 22  # a clock of 4 GHz: less than a millisecond
    assert gc.isenabled()
    assert environment == {"LANG": "C"}


def test_what_the_operator_has_set_stays() -> None:
    environment = {SETTING: "26"}
    with quick_imports(environment):
        assert environment == {SETTING: "26"}
    assert environment == {SETTING: "26"}


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with quick_imports({}):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_import_that_fails_leaves_nothing_changed() -> None:
    environment: dict[str, str] = {}
    with pytest.raises(ModuleNotFoundError), quick_imports(environment):
        import halimede.no_such_module  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()
    assert environment == {}
