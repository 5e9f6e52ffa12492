"""Configurations as JSON, byte by byte like the real server 2.51 (`real/NAME.pbtxt` in, `real/NAME.json` out)."""

import json
from pathlib import Path

import pytest

from halimede import config
from tests.config.models import TENSORS, folder_of

REAL = Path(__file__).parent / "real"
COMPLETED = {"completed", "completed_dynamic"}
SERVED = sorted({path.stem for path in REAL.glob("*.pbtxt")} - COMPLETED)


def draft_of(parent: Path, name: str) -> config.Draft:
    files = ("1/model.py",) if "python" in name or name in COMPLETED | {"backend_from_filename"} else ("1/",)
    return config.read(folder_of(parent, name, (REAL / f"{name}.pbtxt").read_text(), files))


def printed(name: str) -> str:
    return (REAL / f"{name}.json").read_text().removesuffix("\n")


@pytest.mark.parametrize("name", SERVED)
def test_json_equals_the_real_servers(tmp_path: Path, name: str) -> None:
    assert draft_of(tmp_path, name).finish().json == printed(name)


@pytest.mark.parametrize("name", sorted(COMPLETED))
def test_json_after_the_models_own_completion_equals_the_real_servers(tmp_path: Path, name: str) -> None:
    draft = draft_of(tmp_path, name)
    draft.update(
        {
            "max_batch_size": 6,
            "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT64", "dims": [-1, 2]}],
            "dynamic_batching": {"max_queue_delay_microseconds": 77} if name == "completed_dynamic" else {},
            "model_transaction_policy": {"decoupled": True},
            "instance_group": [{"count": 9}],
            "parameters": {"new": {"string_value": "x"}},
        }
    )
    assert draft.finish().json == printed(name)


def test_map_entries_are_sorted(tmp_path: Path) -> None:
    text = 'backend: "identity" metric_tags { key: "b" value: "1" } metric_tags { key: "a" value: "2" }'
    assert '"metric_tags":{"a":"2","b":"1"}' in config.read(folder_of(tmp_path, "m", text)).finish().json


def test_equal_parts_are_printed_equally_and_others_are_not(tmp_path: Path) -> None:
    """Short parts are cached across configurations. A long part is converted each time."""
    long = "x" * 400
    for name, value in (("a", "1"), ("b", "1"), ("c", "2"), ("d", long), ("e", long + "y")):
        text = f'backend: "identity"\n{TENSORS}parameters {{ key: "p" value {{ string_value: "{value}" }} }}\n'
        shown = json.loads(config.read(folder_of(tmp_path, name, text, ("1/",))).finish().json)
        assert shown["name"] == name
        assert shown["instance_group"][0]["name"] == name
        assert shown["parameters"] == {"p": {"string_value": value}}
