"""Contract 1.1 to 1.3, edge cases: nested strings, short JSON, sizes with a reshape."""

from tests.conformance.case import Because, HttpCase, Instead, http, infer, infer_binary, one, refuses
from tests.conformance.case import tensor as t

_DEEP = 101
_BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}]}'
_NESTED = "[" * _DEEP + '"a"' + "]" * _DEEP
_TOO_FEW = "Failed to parse 'data' field: shape does not match true shape"
_MISSING = (
    "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 1 inputs for model 'optional'. Got "
    "input(s) ['INPUT1'], but missing required input(s) ['INPUT0']. Please provide all required input(s)."
)


def _chunked(header_length: int) -> bytes:
    head = (
        "POST /v2/models/int32/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        f"Inference-Header-Content-Length: {header_length}\r\n\r\n"
    )
    return head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)


CASES: tuple[HttpCase, ...] = (
    http(
        "strings nested too deep",
        "H18",
        infer("bytes", f'{{"inputs":[{{"name":"INPUT0","shape":[1],"datatype":"BYTES","data":{_NESTED}}}]}}'),
        instead=Instead(
            Because.NEWER,
            "2.51 has no limit of depth (H18)",
            refuses(400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ),
    ),
    http(
        "data nested 90 deep",
        "H18 H37",
        infer("int32", _BODY.decode().replace("[1]}", "[" * 90 + "1" + "]" * 90 + "}")),
    ),
    *(
        http(f"chunked, an inference header of {length} bytes", "H33 H41", _chunked(length), masks="infer-error-type")
        for length in (len(_BODY), len(_BODY) - 1, len(_BODY) + 1, 1000, -1)
    ),
    http(
        "the optional input given, the required one not",
        "H61",
        infer("optional", {"inputs": [t("INT32", [1, 2], [1, 2], "INPUT1")]}),
        instead=Instead(Because.RIGHT, "only the count is checked there (D44)", refuses(400, _MISSING), asked=False),
    ),
    http("wrong size behind a reshape", "H69 H71",
         infer_binary("reshape_wild", one("FP32", [3, 4, 1], size=44), b"x" * 44)),
    http("wrong size behind a reshape to a scalar", "H69 H71",
         infer_binary("reshape_scalar", one("FP32", [2, 1], size=4), b"x" * 4)),
    http(
        "fewer numbers than a reshape wants",
        "H37 H71",
        infer("reshape_wild", one("FP32", [3, 4, 1], [1] * 11)),
        instead=Instead(Because.NEWER, "2.51 uses the text for too many (H37)", refuses(500, _TOO_FEW)),
    ),
    *(
        http(f"a binary size of 0 for {shape}", "H40 H41", infer_binary("int32", one("INT32", shape, size=0), b""))
        for shape in ([0], [0, 5], [5, 0])
    ),
    http("binary bytes for an input without a size", "H35 H41", infer_binary("int32", one("INT32", [1]), b"\1\0\0\0")),
    http("two binary inputs, the second cut off", "H41", infer_binary(
        "pair", {"inputs": [t("INT32", [1, 2], size=8), t("FP32", [1, 1], size=4, name="INPUT1")]}, b"x" * 10)),
    http("two binary inputs, the first cut off", "H41", infer_binary(
        "pair", {"inputs": [t("INT32", [1, 2], size=8), t("FP32", [1, 1], size=4, name="INPUT1")]}, b"x" * 3)),
)  # fmt: skip
