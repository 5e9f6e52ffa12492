"""Malformed inference requests: Triton's texts, in Triton's order."""

from typing import Any

import orjson
import pytest

from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.wire.http.head import read_head

ITEM: dict[str, Any] = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
TWELVE: dict[str, Any] = {"name": "INPUT0", "shape": [3], "datatype": "INT32", "parameters": {"binary_data_size": 12}}


def item(**changes: Any) -> dict[str, Any]:
    """The usual input with some members changed, and those given as ... removed."""
    return {key: value for key, value in {**ITEM, **changes}.items() if value is not ...}


def refused(document: object, room: int = 0) -> Error:
    head = document if isinstance(document, bytes) else orjson.dumps(document)
    with pytest.raises(Error) as caught:
        read_head(head, "int32", room)
    return caught.value


NO_MEMBER = "attempt to access non-existing object member"
NOT_STRING = "attempt to access JSON non-string as string"
NOT_ARRAY = "attempt to access JSON non-array as array"
NOT_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"


def one(**changes: Any) -> dict[str, Any]:
    return {"inputs": [item(**changes)]}


def wanting(**output_settings: Any) -> dict[str, Any]:
    return {"inputs": [], "outputs": [{"name": "O", "parameters": output_settings}]}


def asking(**parameters: Any) -> dict[str, Any]:
    return {"parameters": parameters, "inputs": []}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        ([], f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        (1, f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        (None, f"Unable to parse 'inputs': {NO_MEMBER} 'inputs'"),
        ({"inputs": {}}, f"Unable to parse 'inputs': {NOT_ARRAY}"),
        ({"inputs": None}, f"Unable to parse 'inputs': {NOT_ARRAY}"),
        ({"id": 1, "inputs": {}}, f"Unable to parse 'id': {NOT_STRING}"),
        ({"id": None, "inputs": []}, f"Unable to parse 'id': {NOT_STRING}"),
        ({"id": 1, "parameters": []}, f"Unable to parse 'id': {NOT_STRING}"),
        ({"parameters": [], "inputs": {}}, "failed to get request params.: attempt to get members for non-object"),
        ({"parameters": None, "inputs": []}, "failed to get request params.: attempt to get members for non-object"),
        ({"outputs": {}, "inputs": {}}, f"Unable to parse 'inputs': {NOT_ARRAY}"),
        ({"outputs": {}, "inputs": [item(data=["x"])]}, f"Unable to parse 'data': {NOT_SIGNED}"),
        ({"outputs": {}, "inputs": []}, f"Unable to parse 'outputs': {NOT_ARRAY}"),
        ({"outputs": None, "inputs": []}, f"Unable to parse 'outputs': {NOT_ARRAY}"),
        ({"outputs": [1], "inputs": []}, f"Unable to parse 'name': {NO_MEMBER} 'name'"),
        ({"outputs": [{}], "inputs": []}, f"Unable to parse 'name': {NO_MEMBER} 'name'"),
        ({"outputs": [{"name": 1}], "inputs": []}, f"Unable to parse 'name': {NOT_STRING}"),
        (wanting(binary_data=0), f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
        (wanting(binary_data=0.0), f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
        (wanting(binary_data="x"), f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
        (wanting(binary_data=1), f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
        (wanting(binary_data=None), f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
        (wanting(classification=-1), f"Unable to set 'classification': {NOT_UNSIGNED}"),
        (one(name=...), f"Unable to parse 'name': {NO_MEMBER} 'name'"),
        (one(name=1, datatype=..., shape=...), f"Unable to parse 'name': {NOT_STRING}"),
        (one(datatype=..., shape=...), f"Unable to parse 'datatype': {NO_MEMBER} 'datatype'"),
        (one(datatype=3, shape=["a"]), f"Unable to parse 'datatype': {NOT_STRING}"),
        (one(datatype=[]), f"Unable to parse 'datatype': {NOT_STRING}"),
        (one(shape=...), f"Unable to parse 'shape': {NO_MEMBER} 'shape'"),
        (one(shape=..., datatype="X"), f"Unable to parse 'shape': {NO_MEMBER} 'shape'"),
        (one(shape=1), f"Unable to parse 'shape': {NOT_ARRAY}"),
        (one(shape=None), f"Unable to parse 'shape': {NOT_ARRAY}"),
        (one(shape={}), f"Unable to parse 'shape': {NOT_ARRAY}"),
        (one(shape=["1"], data=["a"]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        (one(shape=[-1]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        (one(shape=[1.0]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        (one(shape=[True]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        (one(shape=[[1]]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        ({"inputs": [ITEM, item(shape=["x"])]}, f"Unable to parse 'shape': {NOT_UNSIGNED}"),
        (one(datatype="X", data=5), f"Unable to parse 'data': {NOT_ARRAY}"),
        (one(data=..., parameters={"binary_data_size": "4"}), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
        (one(data=..., parameters={"binary_data_size": -4}), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
        (one(data=..., parameters={"binary_data_size": 4.0}), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
        (one(data=..., parameters={"binary_data_size": True}), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
        (one(data=..., parameters={"binary_data_size": None}), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
        (one(data=..., name=..., parameters={"binary_data_size": 4.0}), f"Unable to parse 'name': {NO_MEMBER} 'name'"),
        (asking(sequence_id=True), f"Unable to parse 'sequence_id': {NOT_STRING}"),
        (asking(sequence_id=-1), f"Unable to parse 'sequence_id': {NOT_STRING}"),
        (asking(sequence_id=1.5), f"Unable to parse 'sequence_id': {NOT_STRING}"),
        (asking(sequence_id=None), f"Unable to parse 'sequence_id': {NOT_STRING}"),
        (asking(sequence_start=1), f"Unable to parse 'sequence_start': {NOT_BOOLEAN}"),
        (asking(sequence_end="x"), f"Unable to parse 'sequence_end': {NOT_BOOLEAN}"),
        (asking(priority=-1, timeout="a"), f"Unable to parse 'priority': {NOT_UNSIGNED}"),
        (asking(timeout=1.5, priority=-1), f"Unable to parse 'timeout': {NOT_UNSIGNED}"),
        (asking(timeout=2.0**64), f"Unable to parse 'timeout': {NOT_UNSIGNED}"),
        (asking(binary_data_output=1), f"Unable to parse 'binary_data_output': {NOT_BOOLEAN}"),
    ],
)
def test_request_of_wrong_types(document: object, words: str) -> None:
    error = refused(document)
    assert type(error) is Internal
    assert error.message == words


@pytest.mark.rows("S50")
@pytest.mark.parametrize("text", ["x" * 129, "\u00e9" * 65])
def test_correlation_id_that_is_too_long(text: str) -> None:
    error = refused(asking(sequence_id=text))
    assert type(error) is Unsupported
    assert error.message == "string correlation ID cannot be longer than 128 characters"
    read_head(orjson.dumps(asking(sequence_id=text[:64])), "int32", 0)


SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
BAD_TYPE = "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"inputs": [1]}, SOURCES + "no field is set"),
        (one(data=..., name=...), SOURCES + "no field is set"),
        (one(data=..., parameters="x"), SOURCES + "no field is set"),
        (one(parameters={"binary_data_size": "4"}), SOURCES + "set 'data' 'binary_data_size'"),
        (one(data=None, parameters={"shared_memory_region": 4}), SOURCES + "set 'data' 'shared_memory_region'"),
        (
            one(parameters={"shared_memory_region": "r", "binary_data_size": 4}),
            SOURCES + "set 'data' 'binary_data_size' 'shared_memory_region'",
        ),
        ({"inputs": [ITEM, item(data=...)]}, SOURCES + "no field is set"),
        ({"inputs": [ITEM, item(data=["x"])]}, "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
        ({"inputs": [ITEM, item(datatype="Z")], "id": "q"}, "[request id: q] input 'INPUT0' already exists in request"),
        (one(datatype="INT33"), "invalid datatype for input INPUT0"),
        (one(datatype="int32", data=[]), "invalid datatype for input INPUT0"),
        (
            one(data=..., parameters={"binary_data_size": 4}),
            "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'int32'",
        ),
        (
            one(data=..., parameters={"binary_data_size": 2**64 - 1}),
            "unexpected size for input 'INPUT0', expecting 18446744073709551615 additional bytes for model 'int32'",
        ),
        (
            {"inputs": [item(data=..., parameters={"binary_data_size": 4}), item(name=1)]},
            "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'int32'",
        ),
        ({"parameters": {"triton_x": 1}, "inputs": {}}, RESERVED),
        (asking(x=None), BAD_TYPE),
        (asking(x=[1]), BAD_TYPE),
        (asking(x={}), BAD_TYPE),
    ],
)
def test_request_against_the_rules(document: object, words: str) -> None:
    error = refused(document)
    assert type(error) is Invalid
    assert error.message == words


@pytest.mark.parametrize(
    ("document", "room", "words"),
    [
        (one(), 12, "unexpected additional input data for model 'int32'"),
        ({"outputs": {}, "inputs": [ITEM]}, 4, "unexpected additional input data for model 'int32'"),
        (
            {"inputs": [{**TWELVE, "parameters": {"binary_data_size": 16}}]},
            12,
            "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'int32'",
        ),
    ],
)
def test_request_with_other_bytes_than_it_says(document: object, room: int, words: str) -> None:
    assert refused(document, room).message == words


def test_malformed_json_is_internal() -> None:
    error = refused(b"{")
    assert type(error) is Internal
    assert error.message == "failed to parse the request JSON buffer: Missing a name for object member. at 1"


@pytest.mark.rows("H48")
def test_output_that_comes_twice_counts_before_its_parameters() -> None:
    twice = [{"name": "OUT"}, {"name": "OUT", "parameters": {"binary_data": 1}}]
    for request_id, shown in (("", "<id_unknown>"), ("q", "q")):
        error = refused({"id": request_id, "inputs": [ITEM], "outputs": twice})
        assert type(error) is Invalid
        assert error.message == f"[request id: {shown}] output 'OUT' already exists in request"


def test_name_that_comes_twice_counts_before_the_data() -> None:
    error = refused({"inputs": [ITEM, item(data=["x"])]})
    assert type(error) is Invalid
    assert error.message == "[request id: <id_unknown>] input 'INPUT0' already exists in request"
