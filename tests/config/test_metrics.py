"""Metric tags and histogram buckets of a configuration."""

from pathlib import Path

import pytest

from halimede import config
from halimede.errors import Invalid
from tests.config.models import TENSORS, folder_of

IDENTITY = f'backend: "identity" max_batch_size: 2 {TENSORS}'


def finished(folder: Path, text: str) -> config.ModelConfig:
    return config.read(folder_of(folder, "m", f"{IDENTITY} {text}")).finish()


def test_tags_become_labels(tmp_path: Path) -> None:
    read = finished(tmp_path, 'metric_tags { key: "b" value: "say \\"hi\\"" } metric_tags { key: "a1_" value: "" }')
    assert dict(read.metric_tags) == {"_a1_": "", "_b": 'say "hi"'}


@pytest.mark.parametrize("key", ["", "a-b", "_a", "a b", "ä"])
def test_tag_that_cannot_name_a_label_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(Invalid, match=f"model 'm': the metric tag '{key}' cannot be the name of a label"):
        finished(tmp_path, f'metric_tags {{ key: "{key}" value: "x" }}')


def test_buckets_are_kept_by_family(tmp_path: Path) -> None:
    controls = "".join(
        f'{{ metric_identifier {{ family: "{name}" }} histogram_options {{ buckets: [ {bounds} ] }} }},'
        for name, bounds in (("a", "1"), ("b", "-1, 0.5, inf"), ("a", "2, 3"))
    ).rstrip(",")
    read = finished(tmp_path, f"model_metrics {{ metric_control [ {controls} ] }}")
    assert dict(read.metric_buckets) == {"a": (2.0, 3.0), "b": (-1.0, 0.5, float("inf"))}


@pytest.mark.rows("M27", "R61")
@pytest.mark.parametrize(
    ("control", "text"),
    [
        ("", "metric control must specify 'metric_identifier'"),
        ("metric_identifier { }", "metric identifier must specify non-empty 'family'"),
        ('metric_identifier { family: "f" }', "metric control must specify 'histogram_options'"),
        (
            'metric_identifier { family: "f" } histogram_options { }',
            "histogram options must specify non-empty 'buckets'",
        ),
    ],
)
def test_incomplete_metric_control_is_refused(tmp_path: Path, control: str, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        finished(tmp_path, f"model_metrics {{ metric_control {{ {control} }} }}")


@pytest.mark.parametrize("bounds", ["2, 1", "1, 1", "nan", "1, nan"])
def test_buckets_that_do_not_ascend_are_refused(tmp_path: Path, bounds: str) -> None:
    text = f'metric_identifier {{ family: "f" }} histogram_options {{ buckets: [ {bounds} ] }}'
    with pytest.raises(Invalid, match="model 'm': 'buckets' of 'f' must ascend"):
        finished(tmp_path, f"model_metrics {{ metric_control {{ {text} }} }}")
