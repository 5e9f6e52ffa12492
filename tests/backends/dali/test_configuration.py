"""How a pipeline and a configuration complete each other (BD3 to BD7, BD9). Needs no DALI."""

from pathlib import Path
from typing import Any

import pytest

from halimede.backends.dali.configuration import (
    PipelineShape,
    PipelineTensor,
    check_inputs,
    completed,
    names_of,
    whole,
    writes_batch_size,
)
from halimede.errors import Invalid, Unknown

SHAPE = PipelineShape(
    inputs=(PipelineTensor("b", "TYPE_UINT8", 1), PipelineTensor("a", "TYPE_FP32", 2)),
    outputs=(PipelineTensor("__Resize_1", "TYPE_UINT8", 3), PipelineTensor("__Normalize_2", "", None)),
    max_batch_size=16,
)
SECOND = {"name": "second", "data_type": "TYPE_FP32", "dims": ["3", "-1"]}


@pytest.mark.rows("BD3", "BD4", "BD5", "BD6", "BD7")
def test_what_is_filled_in() -> None:
    config = {"output": [{"name": "first"}, SECOND]}
    found = completed(config, SHAPE, writes_size=False)
    assert found["max_batch_size"] == 16
    assert found["dynamic_batching"] == {}
    ragged = {"allow_ragged_batch": True}
    assert found["input"] == [
        {"name": "a", "data_type": "TYPE_FP32", "dims": [-1, -1], **ragged},
        {"name": "b", "data_type": "TYPE_UINT8", "dims": [-1], **ragged},
    ]
    assert found["output"] == [
        {"name": "first", "data_type": "TYPE_UINT8", "dims": [-1, -1, -1]},
        {"name": "second", "data_type": "TYPE_FP32", "dims": [3, -1]},
    ]


@pytest.mark.rows("BD3", "BD5")
def test_configuration_comes_first() -> None:
    listed = {"name": "b", "data_type": "TYPE_UINT8", "dims": ["100"], "optional": False}
    found = completed({"input": [listed], "output": [{}, SECOND]}, SHAPE, writes_size=False)
    assert [(each["name"], each["dims"]) for each in found["input"]] == [("b", [100]), ("a", [-1, -1])]


@pytest.mark.rows("BD7")
@pytest.mark.parametrize(
    ("config", "writes", "size"),
    [({}, False, 16), ({"max_batch_size": 4}, True, 4), ({"max_batch_size": 0}, True, 0)],
)
def test_batch_size(config: dict[str, Any], writes: bool, size: int) -> None:
    found = completed({**config, "output": [{}, SECOND if size else {**SECOND, "dims": [-1, 3]}]}, SHAPE, writes)
    assert found["max_batch_size"] == size
    assert ("dynamic_batching" in found) == (size > 0)
    assert len(found["input"][1]["dims"]) == (1 if size else 2), "without batches the samples are a dimension"


@pytest.mark.rows("BD7")
def test_batch_size_that_the_file_writes(tmp_path: Path) -> None:
    assert not writes_batch_size(tmp_path)
    for text, writes in (("max_batch_size: 0", True), ('backend: "dali"', False), ("# max_batch_size: 0", False)):
        (tmp_path / "config.pbtxt").write_text(f'name: "m"\n{text}\n')
        assert writes_batch_size(tmp_path) == writes


@pytest.mark.rows("BD3", "BD4", "BD5")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"input": [{"name": "c"}]},
            "Configuration file contains config for c but such input is not present in the pipeline.",
        ),
        (
            {"output": [{}, SECOND, {}]},
            "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
            "Model config outputs: 3\nPipeline outputs: 2",
        ),
        (
            {"input": [{"name": "a", "data_type": "TYPE_INT8"}]},
            'Mismatch of data_type config for "a".\nData type defined in config: TYPE_INT8\n'
            "Data type defined in pipeline: TYPE_FP32",
        ),
        (
            {"input": [{"name": "a", "dims": ["1"]}]},
            'Mismatch in number of dimensions for "a"\nNumber of dimensions defined in config: 1\n'
            "Number of dimensions defined in pipeline: 2",
        ),
        ({"output": [{}, {"name": "x"}]}, 'Missing data_type config for "x"'),
        ({"output": [{}, {"name": "x", "data_type": "TYPE_FP32"}]}, 'Missing dims config for "x"'),
    ],
)
def test_contradictions_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(Unknown) as caught:
        completed(config, SHAPE, writes_size=False)
    assert caught.value.message == f"DALI Backend error: {text}"


@pytest.mark.rows("BD3")
def test_input_that_is_missing_without_completion() -> None:
    config = {"max_batch_size": 4, "input": [{"name": "b"}], "output": [{}, SECOND]}
    with pytest.raises(Unknown, match='Missing config for "a" input'):
        check_inputs(config, SHAPE)


@pytest.mark.rows("BD13")
def test_texts_are_bytes_for_the_pipeline() -> None:
    listed = {"name": "b", "data_type": "TYPE_STRING", "dims": [1]}
    found = completed({"input": [listed], "output": [{}, SECOND]}, SHAPE, writes_size=False)
    assert found["input"][0]["data_type"] == "TYPE_STRING"


@pytest.mark.rows("BD9")
def test_parameters() -> None:
    assert whole({"num_threads": "3 threads"}, "num_threads", -1) == 3
    assert whole({}, "num_threads", -1) == -1
    with pytest.raises(Invalid, match="parameter num_threads is no number: 'all'"):
        whole({"num_threads": "all"}, "num_threads", -1)
    assert names_of({"split_along_outer_axis": "A:B"}, "split_along_outer_axis") == {"A", "B"}
    assert names_of({}, "split_along_outer_axis") == frozenset()
