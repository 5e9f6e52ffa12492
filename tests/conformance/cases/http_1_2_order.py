"""Contract 1.2, which of two faults is reported (H30), and parameters at their limits (H46, H47)."""

import itertools

from tests.conformance.case import OUTPUT_TWICE, HttpCase, Json, http, infer, infer_binary, one, request
from tests.conformance.case import tensor as t

_HUGE = "99999999999999999999"
_GOOD = one("INT32", [1], [1])
_INPUT = t("INT32", [1], [1])
_X = {"name": "X"}

# In the order in which the contract names the checks: each fault is tried with each later one.
_FAULTS: dict[str, Json] = {
    "id": {"id": 1},
    "parameters": {"parameters": {"triton_x": 1}},
    "inputs": {"inputs": {}},
    "outputs": {"outputs": {}},
}
_PAIRS = tuple(itertools.combinations(_FAULTS, 2))
_IN_THE_MODEL = {
    "unknown input and unknown output": {"inputs": [t("INT32", [1], [1], "X")], "outputs": [_X]},
    "wrong count and unknown output": {"inputs": [], "outputs": [_X]},
    "wrong datatype and unknown output": {"inputs": [t("FP32", [1], [1])], "outputs": [_X]},
    "wrong datatype and shape": {"inputs": [t("FP32", [1, 1], [1])]},
    "wrong datatype and data that do not fit it": {"inputs": [t("INT8", [1], [1.5])]},
    "wrong shape and unknown output": {"inputs": [t("INT32", [1, 1], [1])], "outputs": [_X]},
    "unknown output and duplicate input": {"inputs": [_INPUT, _INPUT], "outputs": [_X]},
    "two unknown outputs": {**_GOOD, "outputs": [_X, {"name": "Y"}]},
    "an input with nothing": {"inputs": [{}]},
    "an input with a name only": {"inputs": [{"name": "INPUT0"}]},
    "an input without its datatype": {"inputs": [{"name": "INPUT0", "shape": [1]}]},
    "a good input and one with nothing": {"inputs": [_INPUT, {}]},
}
_BATCHED = {
    "batch too large and wrong datatype": one("FP32", [5, 1], [1] * 5),
    "batch too large and wrong rank": one("INT32", [5], [1] * 5),
    "batch too large and too many numbers": one("INT32", [5, 1], [1] * 6),
}


def _parameters(parameters: Json, model: str = "parameters") -> bytes:
    return infer(model, {**_GOOD, "parameters": parameters})


_VALUES: dict[str, str] = {
    **{f"x {value}": f'{{"x":{value}}}' for value in (
        *("9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"),
        *("-9223372036854775808", "-9223372036854775809", "1e308", "1e400", "-0", "0.1", "1.0", "1e2", "NaN"),
        *("Infinity", '""', '"\\u00e9"', "false", "null", "[]"),
    )},
    **{f"sequence_id {value}": f'{{"sequence_id":{value}}}' for value in (
        *("0", "18446744073709551615", "18446744073709551616", "-1", "1.5", '""', '"7"', "null", "{}"),
    )},
    **{f"{name} {value}": f'{{"{name}":{value}}}' for name in ("priority", "timeout") for value in (
        *("0", "18446744073709551615", "-1", "1.5", '"1"', "true", "null"),
    )},
    **{f"{name} {value}": f'{{"{name}":{value}}}' for name in ("sequence_start", "binary_data_output") for value in (
        *("false", "0", '"true"', "null"),
    )},
    **{f"named {name!r}": f'{{"{name}":1}}' for name in ("", "triton_", "Triton_x", "x.y", "headers")},
    "sequence_start without a sequence": '{"sequence_start":true,"sequence_end":true}',
    "the same name twice in other words": '{"x":1,"X":2}',
}  # fmt: skip
_NO_OBJECTS: tuple[Json, ...] = ([], 5, "x", None)


CASES: tuple[HttpCase, ...] = (
    http("order, method and version", "H30", request("PUT", f"/v2/models/int32/versions/{_HUGE}/infer", b"{"),
         masks="infer-error-type"),
    http("order, version and model", "H30 H13", infer(f"nope/versions/{_HUGE}", "{"), masks="infer-error-type"),
    http("order, version and decoupled", "H30 H13", infer(f"decoupled/versions/{_HUGE}", "{"),
         masks="infer-error-type"),
    http("order, unknown version and decoupled", "H30 H14", infer("decoupled/versions/9", "{"),
         masks="infer-error-type"),
    http("order, decoupled and header", "H30 H31", infer_binary("decoupled", "{", b"", -5), masks="infer-error-type"),
    http("order, model and header", "H30 H14", infer_binary("nope", "{", b"", -5), masks="infer-error-type"),
    http("order, header and JSON", "H30 H33", infer_binary("int32", "{", b"", 100_000), masks="infer-error-type"),
    *(
        http(f"order, {one_} and {other}", "H30", infer("int32", {**_GOOD, **_FAULTS[one_], **_FAULTS[other]}))
        for one_, other in _PAIRS
    ),
    http("order, outputs and bytes left over", "H30 H41", infer_binary("int32", {**_GOOD, "outputs": {}}, b"abc")),
    http("order, unknown output and bytes left over", "H30 H41",
         infer_binary("int32", {**_GOOD, "outputs": [_X]}, b"abc")),
    *(http(f"order, {what}", "H30", infer("int32", body)) for what, body in _IN_THE_MODEL.items()),
    http(
        "order, an output twice and an unknown one",
        "H30 H48",
        infer("int32", {**_GOOD, "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}, _X]}),
        instead=OUTPUT_TWICE,
    ),
    *(http(f"order, {what}", "H30", infer("batched", body)) for what, body in _BATCHED.items()),
    *(
        http(f"request parameters, {what}", "H46", infer("parameters", f'{{"inputs":[{_TEXT}],"parameters":{text}}}'))
        for _TEXT in ('{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}',)
        for what, text in _VALUES.items()
    ),
    *(http(f"request parameters {value}", "H46", _parameters(value)) for value in _NO_OBJECTS),
    *(
        http(f"input parameters {value}", "H47", infer("int32", {"inputs": [{**_INPUT, "parameters": value}]}))
        for value in _NO_OBJECTS
    ),
    *(
        http(f"output parameters {value}", "H47",
             infer("int32", {**_GOOD, "outputs": [{"name": "OUTPUT0", "parameters": value}]}))
        for value in (*_NO_OBJECTS, {"foo": 1}, {"binary_data": None}, {"binary_data": 1})
    ),
    http("unknown keys of an output", "H32 H47", infer("int32", {**_GOOD, "outputs": [{"name": "OUTPUT0", "x": 1}]})),
    http("outputs in another order", "H42 H44",
         infer("chosen", {**_GOOD, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]})),
)  # fmt: skip
