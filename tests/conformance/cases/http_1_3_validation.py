"""Contract 1.3, what the core checks of a request before a model sees it (H60 to H71), with and without an id."""

from tests.conformance.case import HttpCase, http, infer, one
from tests.conformance.case import tensor as t

_A = t("INT32", [1, 2], [1, 2])
_B = t("FP32", [1, 1], [1], "INPUT1")
_C = t("FP32", [1, 1], [1], "X")

CASES: tuple[HttpCase, ...] = (
    http("no inputs", "H49 H60", infer("int32", {"inputs": []})),
    http("no inputs, with an id", "H49 H60", infer("int32", {"id": "q", "inputs": []})),
    http("none of two inputs", "H60", infer("pair", {"inputs": []})),
    http("one of two inputs", "H60", infer("pair", {"inputs": [_A]})),
    http("two inputs of one", "H60", infer("int32", {"inputs": [_A, _B]}), masks="got-order length"),
    http(
        "three inputs of two",
        "H60",
        infer("pair", {"inputs": [_A, _B, _C]}),
        masks="got-order length",
    ),
    http("optional input left out", "H61", infer("optional", {"inputs": [_A]})),
    http("optional input given", "H61", infer("optional", {"inputs": [_A, t("INT32", [1, 2], [3, 4], "INPUT1")]})),
    http("no input where one is optional", "H61", infer("optional", {"inputs": []})),
    http(
        "three inputs where one is optional",
        "H61",
        infer("optional", {"inputs": [_A, _B, _C]}),
        masks="got-order length",
    ),
    http("unknown input", "H62", infer("int32", {"inputs": [t("INT32", [1], [1], "X")]})),
    http("unknown input, with an id", "H62", infer("int32", {"id": "q", "inputs": [t("INT32", [1], [1], "X")]})),
    http("unknown input, wrong count", "H62", infer("pair", {"inputs": [t("INT32", [1], [1], "X")]})),
    http("no shape, batching", "H63", infer("batched", one("INT32", [], [1]))),
    http("no shape, no batching", "H67", infer("int32", one("INT32", [], [1]))),
    http(
        "batches of two sizes",
        "H64",
        infer("pair", {"inputs": [_A, t("FP32", [2, 1], [1, 1], "INPUT1")]}),
        masks="named-input",
    ),
    http("batch too large", "H65", infer("batched", one("INT32", [5, 1], [1] * 5))),
    http("batch too large, with an id", "H49 H65", infer("batched", one("INT32", [5, 1], [1] * 5, id="q"))),
    http("batch of nothing", "H69", infer("batched", one("INT32", [0, 1], []))),
    http("full batch", "H65", infer("batched", one("INT32", [4, 2], list(range(8))))),
    http("wrong datatype", "H66", infer("int32", one("FP32", [1], [1]))),
    http("wrong datatype and shape", "H66", infer("fixed", one("INT32", [3], [1] * 3))),
    http("rank too small, batching", "H67", infer("fixed", one("FP32", [4], [1] * 4))),
    http("rank too large, batching", "H67", infer("fixed", one("FP32", [1, 4, 1], [1] * 4))),
    http("wrong dimension, batching", "H67", infer("fixed", one("FP32", [1, 3], [1] * 3))),
    http("wrong dimension, no batching", "H67", infer("unbatched_fixed", one("FP32", [1, 3], [1] * 3))),
    http("wrong dimension, with an id", "H49 H67", infer("unbatched_fixed", one("FP32", [1, 3], [1] * 3, id="my id"))),
    http("rank too large, no batching", "H67", infer("int32", one("INT32", [1, 1], [1]))),
    http("strings in JSON, too few", "H70", infer("bytes", one("BYTES", [2], ["a"]))),
    http("strings in JSON, too many", "H70", infer("bytes", one("BYTES", [1], ["a", "b"]))),
    http("strings, batching", "H70", infer("batched_bytes", one("BYTES", [2, 2], ["a", "", "b", "\u00e9"]))),
    http("reshape to a scalar", "H71", infer("reshape_scalar", one("FP32", [2, 1], [1.5, 2.5]))),
    http("reshape with variable dimensions", "H71", infer("reshape_wild", one("FP32", [3, 4, 1], list(range(12))))),
    http("reshape, wrong shape", "H67 H71", infer("reshape_scalar", one("FP32", [2], [1, 2]))),
    http("reshape, batch too large", "H65 H71", infer("reshape_scalar", one("FP32", [5, 1], [1] * 5))),
)
