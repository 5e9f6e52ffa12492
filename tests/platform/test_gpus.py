"""Which GPUs are found, from folders as the driver makes them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from halimede.platform.gpus import compute_capability, visible_gpus

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number > 1; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 8 + device : 6; return 0; }
"""


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


def test_generation_of_a_gpu(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler is needed"
    (tmp_path / "cuda.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True, timeout=60)
    assert [compute_capability(device, str(library)) for device in (0, 1, 2)] == ["8.6", "9.6", None]


def test_generation_without_a_driver() -> None:
    assert compute_capability(0, "libof-no-driver.so") is None
