"""The checks of requests, with Triton's texts and in its order (H60 to H74)."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, event, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from halimede.config import ModelConfig, TensorSpec
from halimede.errors import Error, Invalid
from halimede.models.checks import OutputShapes, RequestCheck, bytes_problem
from halimede.requests import InferRequest
from halimede.tensors import DATATYPES, FP32, HostMemory, Tensor, frame_strings
from tests.fakes import UnreachableMemory
from tests.models.configs import asking, asking_raw, config_of, given, spec

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
INT32 = config_of(spec("INPUT0", "INT32", [-1]))
BATCHED = config_of(spec("INPUT0", "INT32", [-1]), max_batch_size=4)
FIXED = config_of(spec("INPUT0", "FP32", [4]), max_batch_size=4)
UNBATCHED = config_of(spec("INPUT0", "FP32", [2, 2]))
PAIR = config_of(spec("INPUT0", "INT32", [2]), spec("INPUT1", "FP32", [1]), max_batch_size=4)
OPTIONAL = config_of(spec("INPUT0", "INT32", [2]), spec("INPUT1", "INT32", [2], optional=True), max_batch_size=4)
SCALAR = config_of(spec("INPUT0", "FP32", [1], []), max_batch_size=4)
BYTES = config_of(spec("INPUT0", "BYTES", [-1]))
WILD = config_of(spec("INPUT0", "INT32", [-1, -1]))

A = given("INPUT0", "INT32", [1, 2])
B = given("INPUT1", "FP32", [1, 1])


def refusal(config: ModelConfig, request: InferRequest) -> str:
    with pytest.raises(Invalid) as raised:
        RequestCheck(config).check(request)
    return str(raised.value)


@pytest.mark.parametrize(
    ("config", "inputs", "text"),
    [
        (
            INT32,
            [],
            "expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['INPUT0']. Please provide all required input(s).",
        ),
        (
            PAIR,
            [A],
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['INPUT0'], but missing required input(s) "
            "['INPUT1']. Please provide all required input(s).",
        ),
        (
            PAIR,
            [],
            "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['INPUT0','INPUT1']. Please provide all required input(s).",
        ),
        (
            OPTIONAL,
            [],
            "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but missing "
            "required input(s) ['INPUT0']. Please provide all required input(s).",
        ),
        (
            BATCHED,
            [given("INPUT0", "INT32", [], bytes(4))],
            "input 'INPUT0' has no shape but model requires batch dimension for 'm'",
        ),
        (BATCHED, [given("INPUT0", "INT32", [5, 1])], "inference request batch-size must be <= 4 for 'm'"),
        (
            BATCHED,
            [given("INPUT0", "INT32", [0, 2])],
            "input byte size mismatch for input 'INPUT0' for model 'm'. Expected 8, got 0",
        ),
        (
            PAIR,
            [A, given("INPUT1", "FP32", [2, 1])],
            "input 'INPUT1' batch size does not match other inputs for 'm'",
        ),
        (
            FIXED,
            [given("INPUT0", "FP32", [4])],
            f"unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,4], got [4]. {BATCH_NOTE}",
        ),
        (
            FIXED,
            [given("INPUT0", "FP32", [1, 4, 1])],
            f"unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,4], got [1,4,1]. {BATCH_NOTE}",
        ),
        (
            FIXED,
            [given("INPUT0", "FP32", [1, 3])],
            f"unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,4], got [1,3]. {BATCH_NOTE}",
        ),
        (
            UNBATCHED,
            [given("INPUT0", "FP32", [1, 3])],
            "unexpected shape for input 'INPUT0' for model 'm'. Expected [2,2], got [1,3]. ",
        ),
        (
            INT32,
            [given("INPUT0", "INT32", [], bytes(4))],
            "unexpected shape for input 'INPUT0' for model 'm'. Expected [-1], got []. ",
        ),
        (
            SCALAR,
            [given("INPUT0", "FP32", [2])],
            f"unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,1], got [2]. {BATCH_NOTE}",
        ),
        (
            INT32,
            [given("INPUT0", "FP32", [1])],
            "inference input 'INPUT0' data-type is 'FP32', but model 'm' expects 'INT32'",
        ),
        (
            INT32,
            [given("INPUT0", "INT32", [-1], bytes(4))],
            "All input dimensions should be specified for input 'INPUT0' for model 'm', got [-1]",
        ),
        (
            WILD,
            [given("INPUT0", "INT32", [-1, -1], bytes(4))],
            "All input dimensions should be specified for input 'INPUT0' for model 'm', got [-1,-1]",
        ),
        (
            BATCHED,
            [given("INPUT0", "INT32", [-1, -1], bytes(4))],
            "All input dimensions should be specified for input 'INPUT0' for model 'm', got [-1,-1]",
        ),
        (
            INT32,
            [given("INPUT0", "INT32", [2], bytes(12))],
            "input byte size mismatch for input 'INPUT0' for model 'm'. Expected 8, got 12",
        ),
        (
            INT32,
            [given("INPUT0", "INT32", [4], bytes(12))],
            "input byte size mismatch for input 'INPUT0' for model 'm'. Expected 16, got 12",
        ),
        (
            BYTES,
            [given("INPUT0", "BYTES", [2], b"\x02\0\0\0ab")],
            "expected 2 string elements for inference input 'INPUT0' for model 'm', got 1",
        ),
        (
            BYTES,
            [given("INPUT0", "BYTES", [2], b"\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c")],
            "unexpected number of string elements 3 for inference input 'INPUT0' for model 'm', expecting 2",
        ),
        (
            BYTES,
            [given("INPUT0", "BYTES", [2], b"\x02\0\0\0ab\x01\0")],
            "incomplete string length indicator for inference input 'INPUT0' for model 'm', expecting 4 bytes but only "
            "2 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            BYTES,
            [given("INPUT0", "BYTES", [1], b"d\0\0\0abc")],
            "incomplete string data for inference input 'INPUT0' for model 'm', expecting string of length 100 but "
            "only 3 bytes available",
        ),
        (
            BYTES,
            [given("INPUT0", "BYTES", [1], b"")],
            "expected 1 string elements for inference input 'INPUT0' for model 'm', got 0",
        ),
    ],
)
def test_invalid_request_gets_the_reason(config: ModelConfig, inputs: Sequence[Tensor], text: str) -> None:
    assert refusal(config, asking(*inputs)) == f"[request id: q] {text}"
    assert refusal(config, asking(*inputs, id="")) == f"[request id: <id_unknown>] {text}"


@pytest.mark.parametrize(
    ("config", "inputs", "names", "most"),
    [
        (PAIR, [A, B, given("INPUT2", "FP32", [1, 1])], "'INPUT0','INPUT1','INPUT2'", "2 inputs"),
        (OPTIONAL, [A, given("X", "INT32", [1, 2]), B], "'INPUT0','INPUT1','X'", "number of inputs between 1 and 2"),
    ],
)
def test_request_with_too_many_inputs(config: ModelConfig, inputs: list[Tensor], names: str, most: str) -> None:
    assert refusal(config, asking(*inputs)).startswith(
        f"[request id: q] expected {most} but got 3 inputs for model 'm'. Got input(s) [{names}], but missing"
    )


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        pytest.param(INT32, [given("X", "INT32", [1])], id="only a wrong name"),
        pytest.param(PAIR, [given("X", "INT32", [1, 2]), B], id="in place of another"),
        pytest.param(PAIR, [given("X", "INT32", [1, 2]), given("INPUT1", "FP32", [2, 1])], id="before the batch sizes"),
        pytest.param(PAIR, [given("X", "INT32", [9, 2]), given("INPUT1", "FP32", [9, 1])], id="before the largest"),
        pytest.param(PAIR, [given("X", "INT32", [1, 2]), given("INPUT1", "INT32", [1, 1])], id="before datatypes"),
    ],
)
def test_unknown_input_is_named_without_the_id_of_the_request(config: ModelConfig, inputs: list[Tensor]) -> None:
    """In Triton's order (H62)."""
    assert refusal(config, asking(*inputs)) == "unexpected inference input 'X' for model 'm'"


def test_unknown_output_comes_before_everything_else() -> None:
    assert refusal(INT32, asking(outputs=["Y"])) == "unexpected inference output 'Y' for model 'm'"


@pytest.mark.parametrize(
    ("inputs", "beginning"),
    [
        ([given("INPUT0", "FP32", [5, 9]), B], "input 'INPUT1' batch size does not match"),
        ([given("INPUT0", "FP32", [9, 9]), given("INPUT1", "FP32", [9, 1])], "inference request batch-size must"),
        ([given("INPUT0", "FP32", [1, 9], b""), B], "inference input 'INPUT0' data-type is 'FP32'"),
        ([given("INPUT0", "INT32", [1, 9], b""), B], "unexpected shape for input 'INPUT0'"),
        ([given("INPUT0", "INT32", [1, 2], b""), B], "input byte size mismatch for input 'INPUT0'"),
    ],
)
def test_error_is_that_of_the_first_broken_rule(inputs: list[Tensor], beginning: str) -> None:
    assert refusal(PAIR, asking(*inputs)).startswith(f"[request id: q] {beginning}")


@pytest.mark.parametrize(
    ("config", "inputs", "batch"),
    [
        (INT32, [given("INPUT0", "INT32", [3])], 0),
        (INT32, [given("INPUT0", "INT32", [0])], 0),
        (BATCHED, [given("INPUT0", "INT32", [4, 7])], 4),
        (BATCHED, [given("INPUT0", "INT32", [1, 0])], 1),
        (PAIR, [B, A], 1),
        (OPTIONAL, [A], 1),
        (OPTIONAL, [given("INPUT1", "INT32", [1, 2]), A], 1),
        (BYTES, [given("INPUT0", "BYTES", [2], b"\0\0\0\0\x01\0\0\0\0")], 0),
    ],
)
def test_request_that_fits_has_a_batch_size(config: ModelConfig, inputs: list[Tensor], batch: int) -> None:
    assert RequestCheck(config).check(asking(*inputs)) == batch


def test_required_input_that_is_missing_is_noticed_though_the_count_is_right() -> None:
    assert "missing required input(s) ['INPUT0']" in refusal(OPTIONAL, asking(given("INPUT1", "INT32", [1, 2])))


def test_outputs_to_answer_with() -> None:
    """(H74)"""
    check = RequestCheck(config_of(outputs=[spec(name, "INT32", [1]) for name in ("b", "a", "c")]))
    assert tuple(check.outputs(asking())) == ("b", "a", "c")
    assert tuple(check.outputs(asking(outputs=["c", "b"]))) == ("c", "b")


def test_check_of_numbers_does_not_look_at_their_bytes() -> None:
    request = asking(Tensor("INPUT0", FP32, (2, 4), UnreachableMemory(32)))
    assert RequestCheck(FIXED).check(request) == 2


# Reshape (H71).


@pytest.mark.parametrize(
    ("max_batch_size", "dims", "reshape", "asked", "seen"),
    [
        (4, [1], [], [2, 1], (2,)),
        (4, [-1], [-1, 1], [2, 3], (2, 3, 1)),
        (0, [-1, 4], [2, -1, 2], [5, 4], (2, 5, 2)),
        (0, [-1, 2, -1], [-1, -1, 2], [3, 2, 5], (3, 5, 2)),
        (0, [4], [2, 2], [4], (2, 2)),
    ],
)
def test_model_sees_the_shape_that_it_was_configured_for(
    max_batch_size: int, dims: list[int], reshape: list[int], asked: list[int], seen: tuple[int, ...]
) -> None:
    config = config_of(spec("INPUT0", "FP32", dims, reshape), max_batch_size=max_batch_size)
    whole = given("INPUT0", "FP32", asked)
    request = asking(whole)
    RequestCheck(config).check(request)
    assert request.inputs["INPUT0"].shape == seen
    assert request.inputs["INPUT0"].memory is whole.memory
    assert whole.shape == tuple(asked)


def test_client_sees_the_shape_of_the_configuration() -> None:
    config = config_of(outputs=[spec("y", "FP32", [-1, 4], [2, -1, 2])], max_batch_size=4)
    shapes = OutputShapes(config)
    assert shapes
    answered = given("y", "FP32", [3, 2, 5, 2])
    restored = shapes.restore(answered)
    assert (restored.shape, restored.memory) == ((3, 5, 4), answered.memory)
    for kept in (given("y", "FP32", [3, 5, 4]), given("z", "FP32", [1])):
        assert shapes.restore(kept) is kept
    assert not OutputShapes(BATCHED)


# Raw requests (H34).


@pytest.mark.parametrize(
    ("config", "body", "shape"),
    [
        (INT32, bytes(12), (3,)),
        (INT32, b"", (0,)),
        (BATCHED, bytes(8), (1, 2)),
        (FIXED, bytes(16), (1, 4)),
        (config_of(spec("INPUT0", "FP32", [2, -1])), bytes(24), (2, 3)),
    ],
)
def test_raw_body_becomes_the_only_input(config: ModelConfig, body: bytes, shape: tuple[int, ...]) -> None:
    request = asking_raw(body)
    assert RequestCheck(config).check(request) == (1 if config.max_batch_size else 0)
    assert request.raw is None
    assert request.inputs["INPUT0"].shape == shape
    assert bytes(request.inputs["INPUT0"].memory.host()) == body


def test_raw_string_is_framed() -> None:
    request = asking_raw(b"abc")
    assert RequestCheck(config_of(spec("INPUT0", "BYTES", [1]), max_batch_size=2)).check(request) == 1
    assert request.inputs["INPUT0"].shape == (1, 1)
    assert bytes(request.inputs["INPUT0"].memory.host()) == b"\x03\0\0\0abc"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            PAIR,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (
            WILD,
            "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized "
            "dimension",
        ),
        (BYTES, "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
        (FIXED, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 8"),
    ],
)
def test_raw_body_that_cannot_be_an_input(config: ModelConfig, text: str) -> None:
    assert refusal(config, asking_raw(bytes(8))) == f"[request id: q] {text}"


# Which requests may share a batch (S4, S5).


@pytest.mark.parametrize(
    ("inputs", "one", "other", "together"),
    [
        ([spec("a", "INT32", [2])], {"a": [1, 2]}, {"a": [3, 2]}, True),
        ([spec("a", "INT32", [-1])], {"a": [1, 2]}, {"a": [3, 2]}, True),
        ([spec("a", "INT32", [-1])], {"a": [1, 2]}, {"a": [1, 3]}, False),
        ([spec("a", "INT32", [-1], ragged=True)], {"a": [1, 2]}, {"a": [1, 3]}, True),
        (
            [spec("a", "INT32", [-1]), spec("b", "INT32", [-1])],
            {"a": [1, 2], "b": [1, 3]},
            {"b": [1, 2], "a": [1, 3]},
            False,
        ),
        (
            [spec("a", "INT32", [-1]), spec("b", "INT32", [-1])],
            {"a": [1, 2], "b": [1, 3]},
            {"b": [1, 3], "a": [1, 2]},
            True,
        ),
        ([spec("a", "INT32", [2]), spec("b", "INT32", [2], optional=True)], {"a": [1, 2]}, {"a": [1, 2]}, True),
        (
            [spec("a", "INT32", [2]), spec("b", "INT32", [2], optional=True)],
            {"a": [1, 2]},
            {"a": [1, 2], "b": [1, 2]},
            False,
        ),
        (
            [spec("a", "INT32", [-1], ragged=True), spec("b", "INT32", [2], optional=True)],
            {"a": [1, 2], "b": [1, 2]},
            {"a": [1, 3], "b": [1, 2]},
            True,
        ),
    ],
)
def test_requests_that_may_share_a_batch(
    inputs: list[TensorSpec], one: dict[str, list[int]], other: dict[str, list[int]], together: bool
) -> None:
    check = RequestCheck(config_of(*inputs, max_batch_size=8))
    keys = []
    for shapes in (one, other):
        request = asking(*(given(name, "INT32", shape) for name, shape in shapes.items()))
        check.check(request)
        keys.append(check.batch_key(request))
    assert (keys[0] == keys[1]) is together
    hash(keys[0])


# Any request at all.


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    inputs = [
        spec(
            name,
            draw(st.sampled_from(["INT32", "BYTES", "UINT8"])),
            draw(st.lists(st.sampled_from([-1, -1, 1, 2]), min_size=0 if name == "a" else 1, max_size=2)),
            optional=draw(st.sampled_from([False, False, True])),
        )
        for name in names
    ]
    return config_of(*inputs, max_batch_size=draw(st.sampled_from([0, 1, 3])))


@st.composite
def requests(draw: st.DrawFn, config: ModelConfig) -> InferRequest:
    """A request that fits, or has one fault."""
    fault = draw(st.sampled_from(["none", "batch", "missing", "name", "datatype", "shape", "rank", "body", "output"]))
    rows = st.integers(-1, 4) if fault == "batch" else st.integers(1, config.max_batch_size or 1)
    lead = [draw(rows)] if config.max_batch_size else []
    inputs = []
    for one in config.inputs:
        name, datatype, shape = one.name, one.datatype.name, [draw(st.integers(0, 2)) if d < 0 else d for d in one.dims]
        if fault == "missing":
            continue
        if fault == "shape":
            shape = draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3]), min_size=len(shape), max_size=len(shape)))
        tensor = given(
            "x" if fault == "name" else name,
            draw(st.sampled_from(["INT32", "BYTES", "UINT8"])) if fault == "datatype" else datatype,
            lead + (shape[1:] if fault == "rank" else shape),
        )
        if fault == "body":
            body = bytes(tensor.memory.host())
            body = draw(st.sampled_from([body, body + b"\0", body[:-1], body + b"\0\0\0\0", b""]))
            tensor = given(name, datatype, tensor.shape, body)
        inputs.append(tensor)
        if one.optional or draw(st.integers(0, 4)) == 0:
            fault = "none"
    return asking(*inputs, outputs=["y"] if fault == "output" else draw(st.sampled_from([[], ["OUTPUT0"]])))


def fits(config: ModelConfig, request: InferRequest) -> bool:
    """The rules again, written down without their order and texts."""
    specs = {one.name: one for one in config.inputs}
    required = {one.name for one in config.inputs if not one.optional}
    lead = 1 if config.max_batch_size else 0
    return (
        set(request.outputs) <= {"OUTPUT0"}
        and required <= request.inputs.keys() <= specs.keys()
        and len({tensor.shape[:lead] for tensor in request.inputs.values()}) <= 1
        and all(input_fits(specs[name], tensor, config) for name, tensor in request.inputs.items())
    )


def input_fits(one: TensorSpec, tensor: Tensor, config: ModelConfig) -> bool:
    wanted = ((range(1, config.max_batch_size + 1),) if config.max_batch_size else ()) + tuple(
        range(10) if d == -1 else (d,) for d in one.dims
    )
    shape = tensor.shape
    return (
        tensor.datatype is one.datatype
        and len(shape) == len(wanted)
        and all(got in want for want, got in zip(wanted, shape, strict=True))
        and bytes(tensor.memory.host()) == bytes(given(one.name, one.datatype.name, shape).memory.host())
    )


@settings(max_examples=400, deadline=None)
@for_all(st.data())
def test_request_is_refused_with_an_explanation_or_fits(data: st.DataObject) -> None:
    config = data.draw(configs())
    request = data.draw(requests(config))
    # A batch of no rows without any element is let through, as the real server does.
    assume(not any(t.shape[:1] == (0,) and 0 in t.shape[1:] for t in request.inputs.values()))
    valid = fits(config, request)
    event(f"valid: {valid}")
    check = RequestCheck(config)
    if valid:
        shapes = [tensor.shape for tensor in request.inputs.values()]
        batch = check.check(request)
        assert batch == (shapes[0][0] if config.max_batch_size and shapes else 0)
        return
    with pytest.raises(Error) as raised:
        check.check(request)
    assert isinstance(raised.value, Invalid), raised.value


@settings(deadline=None)
@for_all(st.binary(max_size=40), st.integers(-1, 6))
def test_bytes_input_of_any_content_is_refused_or_fits(body: bytes, count: int) -> None:
    request = asking(given("INPUT0", "BYTES", [count], body))
    framed, at = 0, 0
    while at + 4 <= len(body):
        at += 4 + int.from_bytes(body[at : at + 4], "little")
        framed += 1
    if framed == count and at == len(body):
        assert RequestCheck(BYTES).check(request) == 0
    else:
        refusal(BYTES, request)


def test_view_of_a_larger_body_is_only_as_long_as_the_view() -> None:
    body = memoryview(bytes(100))
    tensor = Tensor("INPUT0", FP32, (1, 4), HostMemory(body[20:36]))
    assert RequestCheck(FIXED).check(asking(tensor)) == 1


@pytest.mark.parametrize(
    ("shape", "byte_size", "text"),
    [
        ((0, 4), 16, "Expected 0, got 16"),
        ((0, 4), 0, "Expected 16, got 0"),
    ],
)
def test_batch_of_none_is_refused_whatever_it_carries(shape: tuple[int, ...], byte_size: int, text: str) -> None:
    """It would spoil the batch that it is put into: its rows count as one, its bytes are those of none."""
    config = config_of(TensorSpec("INPUT0", FP32, (4,)), max_batch_size=8)
    assert refusal(config, asking(Tensor("INPUT0", FP32, shape, HostMemory(bytes(byte_size))))).endswith(text)


@pytest.mark.parametrize(
    ("config", "body", "text"),
    [
        (BATCHED, bytes(4), "input byte size mismatch for input 'INPUT0' for model 'm'. Expected 8, got 4"),
        (BYTES, bytes(2), "incomplete string length indicator"),
    ],
)
def test_form_that_fitted_before_does_not_vouch_for_the_bytes(config: ModelConfig, body: bytes, text: str) -> None:
    check = RequestCheck(config)
    datatype = config.inputs[0].datatype.name
    for given_body in (None, None, body):
        request = asking(given("INPUT0", datatype, [1, 2] if config.max_batch_size else [2], given_body))
        request.form = b"the same"
        if given_body is None:
            assert check.fit(request).batch_size == (1 if config.max_batch_size else 0)
        else:
            with pytest.raises(Invalid, match=text):
                check.fit(request)


def test_fit_has_the_result_of_a_check() -> None:
    check = RequestCheck(config_of(spec("INPUT0", "INT32", [-1]), max_batch_size=4))
    fits = []
    for shape in ([2, 3], [2, 3], [2, 5]):
        request = asking(given("INPUT0", "INT32", shape), outputs=["OUTPUT0"])
        request.form = bytes(shape)
        fits.append(check.fit(request))
    assert fits[0] is fits[1]
    assert [(fit.batch_size, fit.batch_key, fit.outputs) for fit in fits[1:]] == [
        (2, (3,), ("OUTPUT0",)),
        (2, (5,), ("OUTPUT0",)),
    ]


def test_fit_of_a_reshaped_input_reshapes_each_request() -> None:
    check = RequestCheck(config_of(spec("INPUT0", "FP32", [2, 2], [4])))
    for _ in range(3):
        request = asking(given("INPUT0", "FP32", [2, 2]))
        request.form = b"the same"
        check.fit(request)
        assert request.inputs["INPUT0"].shape == (4,)


def test_fits_are_remembered_within_a_bound() -> None:
    check = RequestCheck(INT32)
    for n in range(3 * check.FITS_LIMIT):
        request = asking(given("INPUT0", "INT32", [n]))
        request.form = str(n).encode()
        check.fit(request)
        assert len(check._fits) <= check.FITS_LIMIT


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\1\0\0\0a" * 3, 3),
        (b"\1\0\0\0a" * 3, 2),
        (b"\1\0\0\0a" * 3, 4),
        (b"\1\0\0\0a\2\0", 2),
        (b"\1\0\0\0a\2\0", 1),
        (b"\1\0\0\0a\2\0\0\0b", 2),
        (b"\1\0\0\0a\2\0\0\0b", 1),
        (b"\1\0\0\0a\2\0\0\0b", 3),
        (b"", 0),
        (b"", 1),
        (b"\0", 0),
    ],
)
def test_lengths_that_were_checked_before_have_the_same_errors(data: bytes, expected: int) -> None:
    plain, framed = (Tensor("A", DATATYPES["BYTES"], (expected,), HostMemory(data)) for _ in range(2))
    frame_strings(framed)
    problems = [bytes_problem(tensor, expected, "m") for tensor in (plain, framed)]
    assert len({None if problem is None else problem.message for problem in problems}) == 1
    assert (problems[0] is None) == ((data, expected) in ((b"\1\0\0\0a" * 3, 3), (b"", 0)))
