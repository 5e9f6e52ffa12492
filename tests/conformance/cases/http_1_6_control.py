"""Contract 1.6, the repository index, and load and unload without model control (H110 to H117)."""

from tests.conformance.case import Because, HttpCase, Instead, encoded, get, http, post, refuses, request

_INDEX = "/v2/repository/index"
_LOAD = "/v2/repository/models/int32/load"
_UNLOAD = "/v2/repository/models/int32/unload"
_CONTROLS = {"load": _LOAD, "unload": _UNLOAD}
_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"

_BAD_LOADS = {
    "malformed": "{",
    "parameters a number": {"parameters": 1},
    "parameters a list": {"parameters": []},
    "parameters null": {"parameters": None},
    "config a number": {"parameters": {"config": 1}},
    "file a number": {"parameters": {"file:1/m": 1}},
    "unknown parameter": {"parameters": {"x": "y"}},
    "unknown parameter of another type": {"parameters": {"unload_dependents": True}},
}
_LOADS = {
    "empty object": {},
    "a list": [],
    "config": {"parameters": {"config": "{}"}},
    "file": {"parameters": {"file:1/m": "YWJj"}},
}
_UNLOADS = {
    "empty object": {},
    "dependents": {"parameters": {"unload_dependents": True}},
    "unknown parameter": {"parameters": {"x": 1}},
}
_NOT_BOOLEAN = refuses(400, "Invalid value for 'ready': expected a boolean")

CASES: tuple[HttpCase, ...] = (
    http("index", "H110 H15", request("POST", _INDEX)),
    http("index, empty body", "H110", post(_INDEX, b"")),
    http("index of a repository", "H110", post("/v2/repository/r/index", b"")),
    *(
        http(f"index, {body}", "H110", post(_INDEX, encoded(body)))
        for body in ("{}", '{"ready":true}', '{"ready":false}', "[]", "null", '"x"', '{"other":1}', "{", " ")
    ),
    *(
        http(
            f"index, ready {value}",
            "H110",
            post(_INDEX, encoded(f'{{"ready":{value}}}')),
            instead=Instead(Because.NEWER, "2.51 answers 500 in the words of its JSON library", _NOT_BOOLEAN),
        )
        for value in ("1", "null", '"true"')
    ),
    http("index, wrong method", "H5", get(_INDEX)),
    http("repository alone", "H1", post("/v2/repository", b"")),
    http("index of a repository without a name", "H1", post("/v2/repository//index", b"")),
    http("model control, no such action", "H1", post("/v2/repository/models/int32/reload", b"")),
    *(http(f"{what}, wrong method", "H5", get(path)) for what, path in _CONTROLS.items()),
    *(http(f"{what} where the models are not controlled", "H117 H6", post(p, b"")) for what, p in _CONTROLS.items()),
    http(
        "load of an unknown model where the models are not controlled", "H117", post(_LOAD.replace("int32", "no"), b"")
    ),
    *(
        http(f"{what} with a repository", "H112 H6", post(path.replace("models/", "r/models/"), b"{"))
        for what, path in _CONTROLS.items()
    ),
    *(http(f"load, {fault}", "H115 H19", post(_LOAD, encoded(body))) for fault, body in _BAD_LOADS.items()),
    *(http(f"load where controlled, {what}", "H117", post(_LOAD, encoded(body))) for what, body in _LOADS.items()),
    *(http(f"unload, {what}", "H117", post(_UNLOAD, encoded(body))) for what, body in _UNLOADS.items()),
    http(
        "unload, dependents a number",
        "H116",
        post(_UNLOAD, encoded({"parameters": {"unload_dependents": 1}})),
        instead=Instead(
            Because.NEWER,
            "2.51 forgets what is wrong with the body",
            refuses(500, "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"),
        ),
    ),
    http(
        "unload, malformed",
        "H116 H19",
        post(_UNLOAD, b"{"),
        instead=Instead(
            Because.RIGHT,
            "it forgets what is wrong with the body",
            refuses(500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ),
    ),
    http(
        "load, file that is not base64",
        "H114",
        post(_LOAD, encoded({"parameters": {"file:1/m": "!!"}})),
        instead=Instead(
            Because.RIGHT,
            "it takes what it can read of the text",
            refuses(400, "load parameter 'file:1/m' is not valid base64"),
        ),
    ),
)
