"""Changed configurations: as JSON for a load request, and in the text of their author."""

import json
from typing import Any

import pytest
from google.protobuf import text_format

from halimede.analyze.changes import changed, override_of, text_of, with_changes
from halimede.errors import Invalid
from halimede.protocol import model_config_pb2 as pb

TEXT = """# What it does.
name: "m"  # its name
backend: "onnxruntime"
max_batch_size: 64 # as many as fit

input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]  # one input

instance_group [
  {
    # the cores of our machines
    count: 1
    kind: KIND_CPU
  }
]

dynamic_batching {
  # waits for others
  max_queue_delay_microseconds: 100
}
"""


def parsed(text: str) -> Any:
    return text_format.Parse(text, pb.ModelConfig())


@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch_size": 8},
        {"instance_group": [{"kind": "KIND_CPU", "count": 3}]},
        {"dynamic_batching": {"max_queue_delay_microseconds": 500}},
        {"max_batch_size": 2, "instance_group": [{"kind": "KIND_CPU", "count": 2}]},
    ],
)
def test_numbers_change_where_they_stand(changes: dict[str, Any]) -> None:
    new = with_changes(TEXT, changes)
    assert parsed(new) == parsed(text_of({**json.loads(_json(TEXT)), **changes}))
    assert [line.partition("#")[2] for line in new.splitlines()] == [
        line.partition("#")[2] for line in TEXT.splitlines()
    ]


def _json(text: str) -> str:
    from google.protobuf import json_format

    return json_format.MessageToJson(parsed(text), preserving_proto_field_name=True)


def test_field_that_is_not_there_is_added_at_the_end() -> None:
    new = with_changes('name: "m"\nmax_batch_size: 4\n', {"dynamic_batching": {}})
    assert new == 'name: "m"\nmax_batch_size: 4\n\ndynamic_batching {\n}\n'


def test_removed_field_takes_its_line_with_it() -> None:
    new = with_changes('name: "m"\nmax_batch_size: 4\ndynamic_batching { }\n# end\n', {"dynamic_batching": None})
    assert new == 'name: "m"\nmax_batch_size: 4\n# end\n'


def test_other_groups_replace_those_that_are_there() -> None:
    text = 'name: "m"\ninstance_group { count: 1 kind: KIND_CPU }\ninstance_group { count: 2 kind: KIND_CPU }\n# end\n'
    new = with_changes(text, {"instance_group": [{"count": 5, "kind": "KIND_CPU"}]})
    assert [group.count for group in parsed(new).instance_group] == [5]
    assert new.endswith("# end\n")


def test_texts_are_written_with_quotes() -> None:
    assert with_changes(TEXT, {"name": "other"}) == TEXT.replace('"m"', '"other"')


def test_size_of_nothing_can_be_written() -> None:
    assert parsed(with_changes(TEXT, {"max_batch_size": 0})).max_batch_size == 0


def test_text_that_is_no_configuration_is_refused() -> None:
    with pytest.raises(Invalid, match="the configuration cannot be read"):
        with_changes("max_batch_size: many", {"max_batch_size": 1})


def test_new_scheduling_replaces_the_old_one() -> None:
    config = {"name": "m", "sequence_batching": {}}
    assert changed(config, {"dynamic_batching": {}}) == {"name": "m", "dynamic_batching": {}}
    assert changed(config, {"max_batch_size": 4})["sequence_batching"] == {}


def test_override_is_json_that_a_server_reads() -> None:
    config = {"name": "m", "max_batch_size": 4, "instance_group": [{"count": 1}]}
    found = json.loads(override_of(config, {"instance_group": [{"count": 3}], "max_batch_size": None}))
    assert found == {"name": "m", "instance_group": [{"count": 3}]}


def test_values_that_are_no_configuration_are_refused() -> None:
    with pytest.raises(Invalid, match="the changed configuration is not valid"):
        override_of({"name": "m"}, {"max_batch_size": "many"})
    with pytest.raises(Invalid, match="not valid"):
        override_of({"name": "m"}, {"no_such_field": 1})
