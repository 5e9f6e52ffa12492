"""Contract 5.4, ensembles: good and bad requests to good ensembles, refusals of bad ones, random graphs, and a sequence
of loads and unloads. The models are those of `tests/conformance/ensembles.py`. All cases have the same masks."""

import struct
from collections.abc import Sequence

from tests.conformance import ensembles
from tests.conformance.case import (
    SETTLED,
    Because,
    Case,
    GrpcCase,
    HttpCase,
    Instead,
    Json,
    encoded,
    get,
    grpc,
    http,
    infer,
    post,
    says,
    tensor,
)

_MASKS = "ensemble-once ensemble-order length infer-error-type"
_NO_SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def _input(*values: int, shape: Sequence[int] | None = None, name: str = "INPUT0") -> Json:
    return tensor("INT32", shape or [len(values)], list(values), name)


def _asks(name: str, rows: str, model: str, *inputs: Json, **more: Json) -> HttpCase:
    instead = more.pop("instead", None)
    body = {"inputs": list(inputs or (_input(7),)), **more}
    masks = _MASKS if instead is None else ""
    return http(f"ensemble, {name}", rows, infer(model, body), masks=masks, instead=instead)


def _answer(model: str, *outputs: tuple[str, int]) -> str:
    tensors = [{"name": name, "datatype": "INT32", "shape": [1], "data": [value]} for name, value in outputs]
    return says(200, {"model_name": model, "model_version": "1", "parameters": _NO_SEQUENCE, "outputs": tensors})


_DEADLOCK = Instead(Because.RIGHT, "it prunes a step that another one needs (D43)", _answer("both", ("OUTPUT0", 7)))
_DEADLOCK_1 = Instead(Because.RIGHT, "it prunes the only step (D43)", _answer("both", ("OUTPUT1", 7)))
_KEPT = Instead(
    Because.PURPOSE,
    "a response from the cache is the one that was kept, parameters included",
    _answer("kept", ("OUTPUT0", 5)),
)

REQUESTS: tuple[HttpCase, ...] = (
    _asks("a chain", "S80 S84", "chain", _input(1, 2)),
    _asks("a chain, an id", "S84", "chain", id="q"),
    _asks("two outputs", "S84", "both"),
    _asks("both outputs asked for", "S85", "both", outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]),
    _asks("the last output only", "S85", "both", outputs=[{"name": "OUTPUT0"}], instead=_DEADLOCK),
    _asks("the first output only", "S85", "both", outputs=[{"name": "OUTPUT1"}], instead=_DEADLOCK_1),
    _asks("an unknown output", "H62", "both", outputs=[{"name": "NOPE"}]),
    _asks("an input that is an output too", "S80", "through"),
    _asks("a batch", "S87", "batched", _input(1, 2, 3, 4, shape=[2, 2])),
    _asks("a batch that grows on its way", "S87", "grown", _input(3, 4, shape=[1, 2])),
    _asks("a batch that grows at the end", "S87", "grown_last", _input(3, 4, shape=[1, 2])),
    _asks("a batch that grows too much", "S87 S88", "grown", _input(9, 4, shape=[1, 2])),
    _asks("a batch that grows too much at the end", "S87", "grown_last", _input(9, 4, shape=[1, 2])),
    _asks("a batch of which nothing is left", "S87 S88", "grown", _input(0, 4, shape=[1, 2])),
    _asks("a batch of which nothing is left at the end", "S87", "grown_last", _input(0, 4, shape=[1, 2])),
    _asks("a batch that loses its other dimension", "S87 S88", "grown", _input(-1, 4, -2, 5, shape=[2, 2])),
    _asks("a batch that loses its other dimension at the end", "S87", "grown_last", _input(-1, 4, -2, 5, shape=[2, 2])),
    _asks("a batch of one for a model without", "S87", "to_unbatched", _input(1, 2, shape=[1, 2])),
    _asks("a batch of two for a model without", "S87 S88", "to_unbatched", _input(1, 2, 3, 4, shape=[2, 2])),
    _asks("no batch for a model with", "S87", "to_batched", _input(1, 2)),
    _asks("a batch whose full shape fits", "S87", "to_rank2", _input(*range(6), shape=[2, 3])),
    _asks("a size that fits", "S82", "to_four", _input(1, 2, 3, 4)),
    _asks("a size that does not fit", "S82 S88", "to_four", _input(1, 2, 3), id="a"),
    _asks("a member that reshapes", "S87", "reshaped", _input(1, 2, 3, 4)),
    _asks("an optional input missing", "S86", "optional"),
    _asks("an optional input given", "S86", "optional", _input(1), _input(2, name="INPUT1")),
    _asks("an input missing that a member needs", "S86 S88", "required"),
    _asks("nested", "S80", "nested", _input(1, 2, 3, 4)),
    _asks("nested, refused inside", "S88", "nested", _input(1, 2, 3), id="n"),
    _asks("a response that is kept", "S93", "kept", _input(5)),
    _asks("found in the cache", "S93", "kept", _input(5), instead=_KEPT),
    _asks("a first step that is well", "S88", "first_odd", _input(0)),
    _asks("a first step that fails", "S88", "first_odd", _input(1), id="i"),
    _asks("a first step that answers nothing", "S86 S88", "first_odd", _input(2), id="i"),
    _asks("a first step of another shape", "S88", "first_odd", _input(3), id="i"),
    _asks("a first step of another datatype", "S88", "first_odd", _input(4), id="i"),
    _asks("a last step that fails", "S88", "last_odd", _input(1), id="i"),
    _asks("a last step that answers nothing", "S86", "last_odd", _input(2), id="i"),
    _asks("a last step of another shape", "S88", "last_odd", _input(3), id="i"),
    _asks("a last step of another datatype", "S88", "last_odd", _input(4), id="i"),
    _asks("nested, a step that fails", "S88", "nested_odd", _input(1)),
    _asks("flags of a sequence", "S84 S74", "sees", parameters={"sequence_id": 5, "sequence_start": True}),
    _asks(
        "everything that is forwarded",
        "S84 S74",
        "sees",
        id="four",
        parameters={"sequence_id": 5, "sequence_end": True, "timeout": 1000000, "priority": 0, "foo": "bar"},
    ),
    _asks(
        "labels of a member",
        "H82",
        "labels",
        _input(3, 9, 1),
        outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}],
    ),
    _asks("no inputs", "H60", "chain", inputs=[]),
    _asks("over HTTP, a decoupled member", "S89 H31", "repeats"),
    *(
        _asks(
            f"a random graph, {name}",
            "S80 S84",
            name,
            *(_input(i + 1, 9, name=put) for i, (put, _, _) in enumerate(made.inputs)),
        )
        for name, made in ensembles.RANDOM.items()
    ),
)

_CONFIGS = ("chain", "repeats", "said_decoupled", "batched", "kept")
ADMIN: tuple[HttpCase, ...] = (
    http("ensemble, index", "S82 S83 H110", post("/v2/repository/index", b""), masks="why-not-loaded length"),
    *(
        http(
            f"ensemble, {model}{path}", f"{row} S89", get(f"/v2/models/{model}{path}"), masks="ensemble-inflight length"
        )
        for model in _CONFIGS
        for path, row in {"": "H11", "/config": "H12"}.items()
    ),
)


def _load(model: str, rows: str) -> HttpCase:
    return http(f"ensemble, load {model}", rows, post(f"/v2/repository/models/{model}/load", b""))


LOADS: tuple[HttpCase, ...] = (
    *(_load(model, "S82 S83 S89") for model in ensembles.MISFITS),
    *(_load(model, "S80 S81") for model in ensembles.MALFORMED),
)


def _raw(*values: int) -> str:
    octal = "".join(f"\\{byte:03o}" for byte in struct.pack(f"<{len(values)}i", *values))
    return f'raw_input_contents: "{octal}"'


def _stream(name: str, rows: str, model: str, count: int, more: str = "") -> GrpcCase:
    tensor = f'inputs {{ name: "INPUT0" datatype: "INT32" shape: [1] }} {_raw(count)}'
    text = f'model_name: "{model}" id: "{name}" {more} {tensor}'
    return grpc(f"ensemble, stream, {name}", rows, "ModelStreamInfer", text, masks="ensemble-final")


_SEQUENCE = (
    'parameters { key: "sequence_id" value { int64_param: 5 } } '
    'parameters { key: "sequence_start" value { bool_param: true } }'
)

STREAMS: tuple[GrpcCase, ...] = (
    _stream("three responses", "S89", "repeats", 3),
    _stream("none", "S89", "repeats", 0),
    _stream("an error in between", "S88 S89", "repeats_odd", 3),
    _stream("a decoupled step behind another", "S89", "repeats_twice", 3),
    _stream("two steps behind one", "S89", "repeats_both", 2, 'outputs { name: "OUTPUT1" }'),
    _stream("one response of a decoupled member", "S89", "one_origin", 4, 'outputs { name: "OUTPUT0" }'),
    _stream("no decoupled member", "S89", "chain", 3),
    _stream("a sequence", "S84 S89", "repeats", 2, _SEQUENCE),
    grpc(
        "ensemble, one call",
        "S84",
        "ModelInfer",
        f'model_name: "chain" inputs {{ name: "INPUT0" datatype: "INT32" shape: [1] }} {_raw(3)}',
    ),
)


def _step(name: str, verb: str, model: str, rows: str, body: Json = "") -> tuple[Case, ...]:
    path = f"/v2/repository/models/{model}/{verb}"
    return (
        http(f"ensemble story, {name}", rows, post(path, encoded(body))),
        http(f"ensemble story, {name}, index", f"{rows} H110", post("/v2/repository/index", b""), until=SETTLED),
    )


_WITH_MEMBERS = {"parameters": {"unload_dependents": True}}
STORY: tuple[Case, ...] = (
    *_step("an ensemble brings its members", "load", "chain", "S83 R10"),
    *_step("a member goes", "unload", "plain", "R16"),
    http(
        "ensemble story, request without a member",
        "R16",
        infer("chain", {"inputs": [_input(1)]}),
        masks="infer-error-type",
    ),
    *_step("the member comes back", "load", "plain", "R16 S83"),
    http("ensemble story, request after that", "R16", infer("chain", {"inputs": [_input(1)]}), masks=_MASKS),
    *_step("nothing changed", "load", "chain", "R10"),
    *_step("the ensemble goes alone", "unload", "chain", "R15"),
    *_step("its member again", "load", "plain", "R16"),
    *_step("the ensemble again", "load", "chain", "S83"),
    *_step("the ensemble and what is only for it", "unload", "chain", "R15", _WITH_MEMBERS),
    *_step("an ensemble of ensembles", "load", "nested", "S83"),
    *_step("the innermost goes", "unload", "plain", "R16"),
    *_step("the innermost comes back", "load", "plain", "R16 S83"),
    *_step("the inner ensemble goes", "unload", "chain", "R16"),
    *_step("the inner ensemble comes back", "load", "chain", "R16 S83"),
    *_step("all go but what was asked for", "unload", "nested", "R15", _WITH_MEMBERS),
    *_step("a member that fails", "load", "on_broken", "S83 R19"),
    *_step("above that", "load", "on_on_broken", "S83 R19"),
)

CASES: tuple[Case, ...] = (*ADMIN, *REQUESTS, *STREAMS, *LOADS, *STORY)
