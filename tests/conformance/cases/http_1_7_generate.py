"""Contract 1.7, the generate extension (H130 to H138): requests, tensors, responses, events, errors."""

import json
from collections.abc import Iterable

from tests.conformance.case import Because, Headers, HttpCase, Instead, Json, encoded, http, post, refuses, request
from tests.conformance.rawhttp import READ

_EVENTS = "text/event-stream; charset=utf-8"
_NOT_ONE = (
    '{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    'various number of responses"}'
)
_JSON_2_73 = "2.51 answers 400 whatever the code of the model's error; since 2.73 it is mapped (H136)"


def _generate(model: str, body: Json, headers: Headers = ()) -> bytes:
    return post(f"/v2/models/{model}/generate", encoded(body), headers)


def _stream(model: str, body: Json, headers: Headers = ()) -> bytes:
    return post(f"/v2/models/{model}/generate_stream", encoded(body), headers)


def _steps(*steps: str) -> Json:
    return {"STEPS": list(steps)}


def _parts(status: int, kind: str, body: str) -> str:
    """The transcript of a chunked answer."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "transfer-encoding: chunked", body, "connection open"]
    return "\n".join(lines)


_ECHOED: dict[str, Json] = {
    "id": {"id": "i", "I32": 1},
    "an empty id": {"id": ""},
    "nothing": {},
    "unknown keys of all kinds": {"s": "x", "b": True, "i": -1, "f": 1.25, "": "", "é": "é"},
    "keys that mean something elsewhere": {
        "sequence_id": 3,
        "sequence_start": True,
        "priority": 2,
        "timeout": 7,
        "binary_data_output": True,
        "triton_x": 1,
    },
    "nested parameters": {"parameters": {"id": "x", "I32": [1, 2], "p": 1, "parameters": 5}, "q": 2},
    "a parameter inside, then outside": {"parameters": {"p": 1}, "p": 2},
    "a parameter outside, then inside": {"p": 2, "parameters": {"p": 1}},
    "no nested parameters": {"parameters": {}},
    "an integer of 64 bits": '{"p":9223372036854775807}',
    "an integer of more than 64 signed bits": '{"p":9223372036854775808}',
    "an integer of more than 64 bits": '{"p":18446744073709551616}',
    "a very negative integer": '{"p":-9223372036854775809}',
    "NaN": '{"p":NaN,"F32":[NaN,Infinity]}',
    "every datatype": {
        "B": [True, False],
        "U8": [1, 300],
        "U64": 18446744073709551615,
        "I8": [-1, 300, 2147483648],
        "I32": [],
        "I64": [-(2**63)],
        "F32": [1, 1.5, -1e30],
        "F64": 0.1,
        "S": ["a", "é\n", ""],
    },
    "empty tensors": {"B": [], "S": [], "F64": [], "MW3": [], "MWW": [], "MW3W": []},
    "one value in many lists": {"I32": [[[[5]]]], "S": [["a"], "b"]},
    "the innermost dimension takes the rest": {"MWW": [1, 2, 3], "MW3": [1, 2, 3], "MW3W": [1, 2, 3, 4, 5, 6]},
    "the outer dimension takes the rest": {"MW3": [1, 2, 3, 4, 5, 6], "M23": [1, 2, 3, 4, 5, 6], "M1": 1},
}
_BATCHED: dict[str, Json] = {
    "one string": {"S": "a"},
    "two strings": {"S": ["a", "b"]},
    "no string": {"S": []},
    "one row": {"I2": [1, 2]},
    "two rows": {"I2": [1, 2, 3, 4]},
    "half a row": {"I2": 1},
    "a row and a half": {"I2": [1, 2, 3]},
    "no row": {"I2": []},
    "too many rows": {"I2": list(range(20))},
    "a variable dimension": {"IW": [1, 2, 3]},
    "a variable and a fixed dimension": {"IW2": [1, 2, 3, 4]},
    "inputs named like members": {"id": "x", "model_name": "y"},
}
_WRONG: dict[str, Json] = {
    "an empty body": "",
    "white space": "  ",
    "malformed": "{",
    "something behind it": '{"I32":1}x',
    "a number that is too large": '{"p":1e400}',
    "an array": [],
    "a number": 1,
    "null": None,
    "text": '"x"',
    "id is a number": {"id": 1},
    "id is null": {"id": None},
    "id is an array": {"id": []},
    "id comes before the others": {"I32": "a", "id": 1},
    "a parameter is null": {"p": None},
    "a parameter is an object": {"p": {}},
    "a parameter is an array": {"p": [1]},
    "a parameter is deep": {"p": [[[[[[[[[[]]]]]]]]]]},
    "the first wrong key counts": {"z": [], "a": None, "parameters": 3},
    "the first wrong key is an input": {"I32": "a", "p": None},
    "parameters is null": {"parameters": None},
    "parameters is an array": {"parameters": []},
    "parameters is text": {"parameters": "x"},
    "nested twice": {"parameters": {"parameters": {}}},
    "a nested parameter is null": {"parameters": {"a": None}},
    "a nested input of a wrong type": {"parameters": {"I32": "a"}},
    "a nested input of a wrong shape": {"parameters": {"M23": 1}},
    "an input inside and outside": {"I32": 1, "parameters": {"I32": 1}},
    "a number for BOOL": {"B": 1},
    "a negative for UINT8": {"U8": -1},
    "a float for INT32": {"I32": 1.0},
    "a boolean for INT32": {"I32": True},
    "null for INT32": {"I32": None},
    "an object for INT32": {"I32": {}},
    "too large for INT64": {"I64": 2**63},
    "text for FP32": {"F32": "1"},
    "a number for BYTES": {"S": 1},
    "a number among strings": {"S": ["a", 1]},
    "FP16": {"F16": [1, 2]},
    "FP16 of a wrong shape": {"F16": 1},
    "BF16": {"BF": 1},
    "BF16 that is empty": {"BF": []},
    "strings of a wrong type and shape": {"S2": 1},
    "strings of a wrong shape": {"S2": "a"},
    "more elements than the outermost list has": {"I32": [[1, 2], [3]]},
    "more strings than the outermost list has": {"S": [["a", "b"], ["c"]]},
    "fewer strings than the outermost list has": {"S": [[]]},
    "too few elements": {"M23": [1, 2, 3]},
    "too many elements": {"M1": [1, 2]},
    "no elements for a fixed shape": {"M1": []},
    "elements that do not divide": {"MW3": [1, 2, 3, 4]},
    "rows instead of elements": {"M23": [[1, 2, 3], [4, 5, 6]]},
}
_TWICE = {
    "an input": '{"I32":1,"I32":2}',
    "an input, the same value": '{"I32":1,"I32":1}',
    "an input, with an id": '{"id":"q","I32":1,"I32":2}',
    "an input, the second of a wrong type": '{"I32":1,"I32":"x"}',
    "an input, blanks before the colons": '{"I32" :1,"I32"\t:\n2}',
    "an input, written with an escape": r'{"I32":1,"\u004932":2}',
    "a nested input": '{"parameters":{"I32":1,"I32":2}}',
    "an input, inside and in a second object": '{"parameters":{"I32":1},"parameters":{"I32":2}}',
    "a parameter": '{"p":1,"p":2}',
    "a parameter, then another type": '{"p":1,"p":"x"}',
    "a parameter, the second of a wrong type": '{"p":1,"p":[]}',
    "a parameter, the first of a wrong type": '{"p":[],"p":1}',
    "a parameter, the second nested": '{"p":1,"parameters":{"p":2}}',
    "a parameter, the first nested": '{"parameters":{"p":2},"p":1}',
    "a nested parameter": '{"parameters":{"p":2,"p":3}}',
    "parameters": '{"parameters":{"p":2},"parameters":{"q":3}}',
    "parameters, the second of a wrong type": '{"parameters":{"p":2},"parameters":3}',
    "the id": '{"id":"a","id":"b"}',
    "the id, the second of a wrong type": '{"id":"a","id":3}',
    "the id, the first of a wrong type": '{"id":3,"id":"a"}',
    "a parameter, with NaN": '{"p":1,"p":2,"n":NaN}',
    "a parameter, with text that looks like members": r'{"S":"{\"p\":1,\"p\":2}","p":1}',
}
_NAMED: dict[str, list[tuple[str, Json]]] = {
    "sorted": [("zz", [1]), ("AA", [1.5])],
    "several elements": [("zz", [[1, 2], [3, 4]]), ("AA", [])],
    "one element of two dimensions": [("zz", [[7]])],
    "names of members": [("id", [5]), ("model_name", [6]), ("AA", [1e30])],
    "the same name twice": [("zz", [1]), ("zz", [2])],
    "not finite": [("AA", ["nan", "inf"])],
    "one that is not finite": [("AA", ["nan"])],
}
_SCRIPTS = {
    "no response": ["final"],
    "one, then the flag": ["text:a", "final"],
    "one with the flag": ["text!:a"],
    "two": ["text:a|b", "text!:b"],
    "three, then the flag": ["text:a", 'text:"', "both:c", "final"],
    "a response without outputs": ["nothing!"],
    "a response of no elements": ["empty!"],
    "id and parameters": ["seen!"],
    "an error behind a response": ["text:a", "error:INVALID_ARG bad", "final"],
    "an error between responses": ["text:a", "error:UNSUPPORTED bad", "text!:b"],
    "an error first": ["error:INVALID_ARG bad", "text!:a"],
    "two errors": ["error:INVALID_ARG one", "error!:NOT_FOUND two"],
    "an error alone": ['error!:INVALID_ARG "bad"'],
}
_CODES = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNSUPPORTED": 501}


def _requests() -> Iterable[HttpCase]:
    for name, body in _ECHOED.items():
        yield http(f"generate: {name}", "H130 H131 H133", _generate("generate_echo", body))
    for name, body in _BATCHED.items():
        yield http(f"generate, batching: {name}", "H132", _generate("generate_batched", body))
    for name, body in _WRONG.items():
        yield http(f"generate, wrong: {name}", "H131 H132 H137 H19", _generate("generate_echo", body))
        yield http(f"generate_stream, wrong: {name}", "H137", _stream("generate_echo", body))
    for name, value in {"an object": {"a": 1}, "an array": [1], "a number": 1}.items():
        yield http(
            f"generate, input named parameters: {name}", "H131", _generate("generate_nested", {"parameters": value})
        )
    yield http("generate, a required input is missing", "H137", _generate("pair", {"INPUT0": [1, 2]}))
    yield http("generate_stream, a required input is missing", "H137", _stream("pair", {"id": "7"}))
    for name, text in _TWICE.items():
        yield http(f"generate, twice: {name}", "H131 H48", _generate("generate_echo", text))
        yield http(f"generate_stream, twice: {name}", "H131 H48", _stream("generate_echo", text))
    yield http(
        "generate, fewer elements than the outermost list has",
        "H37 H132",
        _generate("generate_echo", {"I32": [1, []]}),
        instead=Instead(
            Because.NEWER,
            "2.51 has the text of too many elements for too few as well (H37)",
            refuses(500, "Failed to parse 'data' field: shape does not match true shape"),
        ),
    )


def _responses() -> Iterable[HttpCase]:
    for name, outputs in _NAMED.items():
        asked = {"OUT": json.dumps(outputs), **({"id": "q"} if "members" in name else {})}
        yield http(f"generate, outputs: {name}", "H134", _generate("generate_names", asked))
        yield http(f"generate_stream, outputs: {name}", "H134", _stream("generate_names", asked))
    half = {"OUT": json.dumps([("zz", [1]), ("half", [1])])}
    yield http("generate, an output that JSON cannot say", "H134 H39", _generate("generate_names", half))
    yield http("generate_stream, an output that JSON cannot say", "H134 H39", _stream("generate_names", half))
    for name, steps in _SCRIPTS.items():
        body: Json = {**_steps(*steps), "p": 1, **({"id": "7"} if name.startswith("id") else {})}
        yield http(f"generate, decoupled: {name}", "H130 H135", _generate("scripted", body))
        yield http(f"generate_stream, decoupled: {name}", "H130 H136", _stream("scripted", body))
    yield http("generate_stream, not decoupled", "H130 H136", _stream("int32", {"INPUT0": [1, 2]}))
    yield http("generate, decoupled, one response", "H130 H135", _generate("decoupled", {"INPUT0": 5}))
    yield http("generate_stream, decoupled, three responses", "H136", _stream("decoupled", {"INPUT0": [1, 2, 3]}))


def _codes() -> Iterable[HttpCase]:
    for word, status in _CODES.items():
        body, error = _steps(f"error!:{word} bad"), '{"error":"bad"}'
        for name, asked, text in (
            ("generate", _generate("scripted", body), _parts(status, "application/json", error)),
            ("generate_stream", _stream("scripted", body), _parts(status, _EVENTS, f"data: {error}\n\n")),
        ):
            because = Instead(Because.NEWER, _JSON_2_73, text)
            yield http(f"{name}, the model's error {word}", "H135 H136 H6", asked, instead=because)
    body = _steps("error:NOT_FOUND bad", "text!:a")
    yield http(
        "generate, the model's error NOT_FOUND and another response",
        "H135",
        _generate("scripted", body),
        instead=Instead(Because.NEWER, _JSON_2_73, _parts(404, "application/json", _NOT_ONE)),
    )


def _before_the_model() -> Iterable[HttpCase]:
    good, gzip = {"INPUT0": [1]}, [("Content-Encoding", "gzip")]
    for name, asked in (("generate", _generate), ("generate_stream", _stream)):
        yield http(f"{name}, unknown model", "H137 H14", asked("nope", good))
        yield http(f"{name}, unknown version", "H137 H14", asked("int32/versions/7", good))
        yield http(f"{name}, one version", "H130", asked("int32/versions/1", good))
        yield http(
            f"{name}, a version of more than 64 bits", "H13 H137", asked("int32/versions/99999999999999999999", good)
        )
        yield http(f"{name}, a version that is no number", "H13", asked("int32/versions/x", good))
        yield http(f"{name}, model that is not ready", "H137", asked("unready", good))
        yield http(f"{name}, content encoding gzip", "H137", asked("int32", good, gzip))
        yield http(
            f"{name}, content encoding identity", "H137", asked("int32", good, [("Content-Encoding", "identity")])
        )
        yield http(
            f"{name}, content encoding Identity", "H137", asked("int32", good, [("Content-Encoding", "Identity")])
        )
        yield http(f"{name}, the model before the encoding", "H30 H137", asked("nope", "{", gzip))
        yield http(f"{name}, the encoding before the body", "H30 H137", asked("int32", "{", gzip))
        yield http(f"{name}, the model before the body", "H30 H137", asked("nope", "{"))
        yield http(f"{name}, accepts gzip", "H137", asked("int32", good, [("Accept-Encoding", "gzip")]))
        yield http(
            f"{name}, a length of the inference header",
            "H131",
            asked("int32", good, [("Inference-Header-Content-Length", 3)]),
        )
        yield http(f"{name}, the end asked for", "H130", asked("int32", good, [("Connection", "close")]))
        yield http(f"{name}, two on one connection", "H130", asked("int32", good), READ, asked("int32", good))
        yield http(f"{name}, by GET", "H15", request("GET", f"/v2/models/int32/{name}"))
        yield http(f"{name}, without a body", "H137", request("POST", f"/v2/models/int32/{name}"))
        for form in ("text", "json", "bogus"):
            header = [("endpoint-load-metrics-format", form)]
            yield http(f"{name}, load metrics as {form}, and there are none", "H138", asked("int32", good, header))
    yield http(
        "generate_stream for a client of HTTP/1.0",
        "H130",
        request("POST", "/v2/models/int32/generate_stream", encoded(good), version="HTTP/1.0"),
        instead=Instead(
            Because.RIGHT,
            "chunks are no part of HTTP/1.0: such a client would take their sizes for a part of the events",
            "\n".join(
                [
                    "HTTP/1.0 200",
                    f"content-type: {_EVENTS}",
                    'data: {"OUTPUT0":1,"model_name":"int32","model_version":"1"}\n\n',
                    "connection closed",
                ]
            ),
        ),
    )


CASES: tuple[HttpCase, ...] = (*_requests(), *_responses(), *_codes(), *_before_the_model())
