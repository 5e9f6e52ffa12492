"""Which GPUs are found, from folders as the driver makes them."""

from pathlib import Path

import pytest

from halimede.platform.gpus import visible_gpus


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A driver that shows three GPUs."""
    for address in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / address).mkdir()
    return tmp_path


def test_gpus_without_a_driver(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "nothing") == ()


def test_gpus_of_a_driver_without_devices(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) == ()


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("-1", ()),
        ("1", (0,)),
        ("2,0", (0, 1)),
        (" 0 , 1 ", (0, 1)),
        ("0,7,1", (0,)),
        ("GPU-8932f937", (0,)),
        ("0,1,2,0", (0, 1, 2)),
    ],
)
def test_gpus_that_are_chosen_are_numbered_anew(driver: Path, chosen: str | None, ids: tuple[int, ...]) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(environment, driver) == ids
