"""Contract 1.2, responses of models (H45, H50): one, none and two of them, and their parameters."""

import json

from tests.conformance.case import Because, HttpCase, Instead, Json, http, infer, one, says

_FIRST = "a model that breaks after its response has answered; the real server takes its error for a second response"


def _often(count: int, **more: Json) -> HttpCase:
    return http(
        f"a model that answers {count} times",
        "H50",
        infer("answers_often", one("INT32", [1], [count])),
        **more,
    )


def _says(model: str, value: int, **more: Json) -> str:
    output = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1], "data": [value]}
    return says(200, {"model_name": model, "model_version": "1", **more, "outputs": [output]})


def _with_parameters(name: str, parameters: Json) -> HttpCase:
    return http(
        f"response with {name}",
        "H45",
        infer("response_parameters", one("BYTES", [1], [json.dumps(parameters)])),
        instead=Instead(
            Because.NEWER,
            "the Python models of 2.51 have no parameters of responses",
            _says("response_parameters", 0, parameters=parameters),
        ),
    )


CASES: tuple[HttpCase, ...] = (
    _often(0, masks="infer-error-type"),
    _often(1),
    *(_often(count, instead=Instead(Because.PURPOSE, _FIRST, _says("answers_often", count))) for count in (2, 3)),
    _with_parameters("a flag", {"a": True, "b": False}),
    _with_parameters("integers", {"z": -5, "a": 2**62}),
    _with_parameters("text", {"t": 'h\u00e9"\n'}),
)
