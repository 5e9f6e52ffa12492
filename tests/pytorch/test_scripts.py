"""TorchScript models on a started server (BT1 to BT27): what loads, what is refused, and the answers."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.pytorch import scripts
from tests.pytorch.configs import ECHO, io
from tests.pytorch.served import Served

Save = Callable[[Path], object]
Specs = Sequence[tuple[str, str, Sequence[int]]]

PAIR: Specs = [("OUTPUT__0", "FP32", [2])]
ROW = {"INPUT0": ("FP32", [[1, 2]])}


def saved(module: nn.Module) -> Save:
    return partial(scripts.save, module)


def two(first: str, second: str) -> str:
    return io([(first, "FP32", [2]), (second, "FP32", [2])], PAIR)


# ---- ways in


@pytest.mark.rows("BT1", "BT2")
@pytest.mark.parametrize("named", ['backend: "pytorch"\n', 'platform: "pytorch_libtorch"\n', "name: 'm'\n"])
def test_three_ways_in(served: Served, named: str) -> None:
    text = "" if named.startswith("name") else named
    name = served.write(None, saved(scripts.Echo()))
    (served.repository / name / "config.pbtxt").write_text(text + ECHO)
    assert served.load(name) == ""
    assert served.infer(name, {"INPUT0": ("FP32", [1, 2])})["OUTPUT0"].tolist() == [1, 2]
    config = served.config(name)
    assert (config["backend"], config["platform"], config["max_batch_size"]) == ("pytorch", "pytorch_libtorch", 0)
    assert "dynamic_batching" not in config


@pytest.mark.rows("BT1")
def test_platform_torch_aoti_means_another_kind_of_file(served: Served) -> None:
    reason = served.refused('platform: "torch_aoti"\n' + ECHO, saved(scripts.Echo()), "model.pt2")
    assert 'PyTorch inductor model file "' in reason
    assert "is a TorchScript archive" in reason


@pytest.mark.rows("BT2", "BT7")
def test_file_does_not_name_tensors(served: Served) -> None:
    assert "model configuration must contain at least one input, none were specified." in served.refused(
        "", saved(scripts.Echo())
    )
    only_inputs = 'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
    assert "at least one output, none were specified." in served.refused(only_inputs, saved(scripts.Echo()))
    assert served.log("skipping model configuration auto-complete for 'm")


def test_lists_of_strings_complete_the_configuration(served: Served) -> None:
    name = served.loaded(None, saved(scripts.Strings()))
    config = served.config(name)
    assert config["input"][0] | config["output"][0] != {}
    assert [(each["name"], each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])] == [
        ("words", "TYPE_STRING", ["-1"] if isinstance(config["input"][0]["dims"][0], str) else [-1]),
        ("OUTPUT__0", "TYPE_STRING", config["output"][0]["dims"]),
    ]
    answer = served.infer(name, {"words": ("BYTES", np.array([b"a", b"bc"], object))})
    assert answer["OUTPUT__0"].tolist() == [b"a", b"bc"]


# ---- names


@pytest.mark.rows("BT3")
def test_names_of_arguments_in_any_order(served: Served) -> None:
    name = served.loaded(two("b", "a"), saved(scripts.Subtract()))
    answer = served.infer(name, {"a": ("FP32", [5, 5]), "b": ("FP32", [1, 2])})
    assert answer["OUTPUT__0"].tolist() == [4, 3]


@pytest.mark.rows("BT4")
def test_ordinals_in_any_order(served: Served) -> None:
    name = served.loaded(two("x__1", "y__0"), saved(scripts.Subtract()))
    answer = served.infer(name, {"y__0": ("FP32", [5, 5]), "x__1": ("FP32", [1, 2])})
    assert answer["OUTPUT__0"].tolist() == [4, 3]
    name = served.loaded(two("x__", "y__1"), saved(scripts.Subtract()))  # no digits: 0
    answer = served.infer(name, {"x__": ("FP32", [5, 5]), "y__1": ("FP32", [1, 2])})
    assert answer["OUTPUT__0"].tolist() == [4, 3]


@pytest.mark.rows("BT4")
@pytest.mark.parametrize(("first", "second"), [("x__0", "y__0"), ("x__0", "y__2")])
def test_ordinals_that_are_missing_or_double(served: Served, first: str, second: str) -> None:
    assert "would be argument" in served.refused(two(first, second), saved(scripts.Subtract()))


@pytest.mark.rows("BT5")
def test_order_of_the_configuration(served: Served) -> None:
    name = served.loaded(two("b", "other"), saved(scripts.Subtract()))  # one bad name switches all
    answer = served.infer(name, {"b": ("FP32", [5, 5]), "other": ("FP32", [1, 2])})
    assert answer["OUTPUT__0"].tolist() == [4, 3]
    name = served.loaded(two("y__1", "x__bad"), saved(scripts.Subtract()))
    served.serving.until_logged(
        f"input 'x__bad' or previous input(s) are neither an input argument to the model '{name}' nor do they follow "
        "the <name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration."
    )


@pytest.mark.rows("BT6", "BT11", "BC5")
def test_outputs_by_ordinals_or_in_order(served: Served) -> None:
    inputs: Specs = [("INPUT0", "FP32", [1]), ("INPUT1", "FP32", [1])]
    given = {"INPUT0": ("FP32", [5]), "INPUT1": ("FP32", [2])}
    second = served.loaded(io(inputs, [("OUTPUT__1", "FP32", [1])]), saved(scripts.AddSub()))
    assert served.infer(second, given)["OUTPUT__1"].tolist() == [3]
    ordered = served.loaded(io(inputs, [("OUTPUT__1", "FP32", [1]), ("SUB", "FP32", [1])]), saved(scripts.AddSub()))
    assert {k: v.tolist() for k, v in served.infer(ordered, given).items()} == {"OUTPUT__1": [7], "SUB": [3]}
    assert {k: v.tolist() for k, v in served.infer(ordered, given, ["SUB"]).items()} == {"SUB": [3]}
    served.serving.until_logged(
        f"output 'SUB' or previous output(s) of the model '{ordered}' do not follow the <name>__<index> naming"
    )
    beyond = served.loaded(io(inputs, [("OUTPUT__5", "FP32", [1])]), saved(scripts.AddSub()))
    assert served.fails(beyond, {"INPUT0": ("FP32", [5]), "INPUT1": ("FP32", [2])}) == (
        400,
        "The output OUTPUT__5 in the model configuration refers to an output index which doesn't exist. This model has "
        "2 outputs",
    )


# ---- what a load refuses


@pytest.mark.rows("BT7", "BT8", "BT9", "BT16", "BC7")
@pytest.mark.parametrize(
    ("config", "module", "reason"),
    [
        (ECHO, scripts.Subtract(), "configuration expects 1 inputs, model provides 2"),
        (two("a", "b"), scripts.Echo(), "configuration expects 2 inputs, model provides 1"),
        (
            two("INPUT0", "n"),
            scripts.OfInteger(),
            "An input of type 'int' was detected in the model. Only a single input of type Dict(str, Tensor) or "
            "input(s) of type Tensor are supported.",
        ),
        (
            two("INPUT0", "more"),
            scripts.OfTwoDicts(),
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
            "supported.",
        ),
        (
            io([("words", "STRING", [2, 2])], [("OUTPUT0", "STRING", [2])]),
            scripts.Strings(),
            "Triton only supports 1 dimensional List of String as input for 'words' for model 'm",
        ),
        (
            io([("words", "STRING", [2])], [("OUTPUT0", "STRING", [2, 2])]),
            scripts.Strings(),
            "Triton only supports 1 dimensional List of String as output for 'OUTPUT0' for model 'm",
        ),
        (
            ECHO.replace("dims: [2]", "dims: [2] optional: true", 1),
            scripts.Echo(),
            "'optional' is set to true for input 'INPUT0' while the backend model doesn't support optional input",
        ),
    ],
    ids=["too few", "too many", "integer", "two dicts", "strings in", "strings out", "optional"],
)
def test_configurations_that_do_not_fit(served: Served, config: str, module: nn.Module, reason: str) -> None:
    assert reason in served.refused(config, saved(module))


@pytest.mark.rows("BC11")
def test_missing_file(served: Served) -> None:
    name = served.write(ECHO, lambda path: None)
    path = served.repository / name / "1" / "model.pt"
    assert f"Unavailable: unable to find '{path}' for model instance '{name}'" in served.load(name)


@pytest.mark.rows("BT27")
def test_file_that_is_cut_off(served: Served) -> None:
    def save(path: Path) -> None:
        scripts.save(scripts.Linear(), path)
        path.write_bytes(path.read_bytes()[:-200])

    reason = served.refused(ECHO, save)
    assert "Internal: failed to load model 'm" in reason


def test_foreign_files_are_named(served: Served) -> None:
    pickle = served.refused(ECHO, lambda path: torch.save(scripts.Linear(), path))
    assert "is a pickle (torch.save), and not a TorchScript archive" in pickle
    old = served.refused(ECHO, lambda path: torch.save(nn.Linear(1, 1), path, _use_new_zipfile_serialization=False))
    assert "is a pickle (torch.save)" in old


# ---- results


@pytest.mark.rows("BT9")
def test_dict_of_tensors(served: Served) -> None:
    name = served.loaded(two("b", "a"), saved(scripts.OfDict()))
    answer = served.infer(name, {"a": ("FP32", [5, 5]), "b": ("FP32", [1, 2])})
    assert answer["OUTPUT__0"].tolist() == [4, 3]


_RESULTS = (
    "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple containing one of these two types. It "
    "should not be a List / Dictionary of Tensors or a Scalar"
)


@pytest.mark.rows("BT10", "BT12", "BT14", "BT15")
@pytest.mark.parametrize(
    ("module", "outputs", "status", "text"),
    [
        (scripts.ReturnsDict(), 1, 500, _RESULTS),
        (
            scripts.ReturnsList(),
            1,
            500,
            "PyTorch execute failure: output must be of type Tensor or List[str], received List[Tensor]",
        ),
        (
            scripts.ReturnsListInTuple(),
            2,
            500,
            "PyTorch execute failure: output at index 1 must be of type Tensor or List[str], received List[Tensor]",
        ),
        (
            scripts.Integers(),
            1,
            400,
            "configuration expects datatype TYPE_FP32 for output 'OUTPUT__0', model provides TYPE_INT64",
        ),
        (scripts.Sum(), 1, 400, "output 'OUTPUT__0' is a scalar which is not supported."),
    ],
    ids=["dict", "list", "list in a tuple", "integers", "scalar"],
)
def test_results_that_are_no_outputs(served: Served, module: nn.Module, outputs: int, status: int, text: str) -> None:
    config = io([("INPUT0", "FP32", [2])], [(f"OUTPUT__{i}", "FP32", [2]) for i in range(outputs)])
    name = served.loaded(config, saved(module))
    assert served.fails(name, {"INPUT0": ("FP32", [1, 2])}) == (status, text)


@pytest.mark.rows("BT12", "BC13")
def test_exception_in_forward(served: Served) -> None:
    name = served.loaded("max_batch_size: 4\n" + ECHO, saved(scripts.Failing()))
    status, text = served.fails(name, {"INPUT0": ("FP32", [[-1, 2]])})
    assert status == 500
    assert text.startswith("PyTorch execute failure: ")
    assert "negative" in text
    assert served.infer(name, ROW)["OUTPUT0"].tolist() == [[1, 2]]


TYPES = (
    "BOOL",
    "UINT8",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "UINT16",
    "UINT32",
    "UINT64",
    "BF16",
)


@pytest.mark.rows("BT13")
@pytest.mark.parametrize("kind", TYPES)
def test_datatypes(served: Served, kind: str) -> None:
    config = "max_batch_size: 4\n" + io([("INPUT0", kind, [3])], [("OUTPUT0", kind, [3])])
    name = served.loaded(config, saved(scripts.Echo()))
    answer = served.infer(name, {"INPUT0": (kind, [[0, 1, 3]])})["OUTPUT0"]
    assert answer.astype(np.float64).tolist() == [[0, 1, 1 if kind == "BOOL" else 3]]


@pytest.mark.rows("BT16", "BC6")
def test_strings_of_several_requests_in_a_batch(served: Served) -> None:
    config = (
        "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }\n"
        'input [ { name: "words" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [] } } ]\n'
        'output [ { name: "LENGTH__0" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [] } },\n'
        '         { name: "UPPER__1" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [] } } ]\n'
    )
    name = served.loaded(config, saved(scripts.StringLengths()))
    words = [b"a", b"bc", b"def"]
    with ThreadPoolExecutor(3) as pool:
        ask = lambda word: served.infer(name, {"words": ("BYTES", np.array([[word]], object))})  # noqa: E731
        answers = list(pool.map(ask, words))
    assert [each["UPPER__1"].tolist() for each in answers] == [[[b"A"]], [[b"BC"]], [[b"DEF"]]]
    assert [each["LENGTH__0"].tolist() for each in answers] == [[[1]], [[2]], [[3]]]


def test_strings_that_are_not_text_pass_through_a_model(served: Served) -> None:
    config = io([("words", "STRING", [-1])], [("LENGTH", "INT64", [-1])])
    name = served.loaded(config, saved(scripts.ByteLengths()))
    answer = served.infer(name, {"words": ("BYTES", np.array([b"\xff\x00\xfe", b""], object))})
    assert answer["LENGTH"].tolist() == [3, 0]


@pytest.mark.rows("BT17")
def test_layouts_and_empty_tensors(served: Served) -> None:
    config = io([("x", "FP32", [-1, 2])], [("OUTPUT0", "FP32", [2, -1])])
    name = served.loaded(config, saved(Transposed()))
    assert served.infer(name, {"x": ("FP32", [[1, 2], [3, 4], [5, 6]])})["OUTPUT0"].tolist() == [[1, 3, 5], [2, 4, 6]]
    empty = served.infer(name, {"x": ("FP32", np.zeros((0, 2)))})["OUTPUT0"]
    assert empty.shape == (2, 0)


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()


@pytest.mark.rows("BC1", "BC2", "BC4")
def test_batches_have_the_rows_of_all_requests(served: Served) -> None:
    """The inner dims of an output may differ from the configuration."""
    batcher = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000000 }\n"
    config = "max_batch_size: 4\n" + batcher + io([("x", "FP32", [4])], [("OUTPUT0", "FP32", [7])])
    name = served.loaded(config, saved(scripts.Linear(4, 3)))
    rows = np.random.default_rng(1).random((4, 4), np.float32)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda part: served.infer(name, {"x": ("FP32", part)})["OUTPUT0"], (rows[:1], rows[1:])))
    assert [part.shape for part in parts] == [(1, 3), (3, 3)]
    whole = served.infer(name, {"x": ("FP32", rows)})["OUTPUT0"]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-6)
    status, text = served.fails(name, {"x": ("FP32", np.zeros((5, 4)).tolist())})
    assert status == 400
    assert "batch-size must be <= 4" in text


@pytest.mark.parametrize("module", [scripts.Less(), scripts.More()])
def test_wrong_number_of_rows(served: Served, module: nn.Module) -> None:
    """The rows of the result cannot be told apart, so no request gets some of them (BC3)."""
    name = served.loaded("max_batch_size: 4\n" + ECHO, saved(module))
    status, text = served.fails(name, {"INPUT0": ("FP32", [[1, 2], [3, 4]])})
    assert status == 500
    assert "for a batch of 2" in text


# ---- batches and sequences


@pytest.mark.rows("BT18")
def test_ragged_input_with_a_batch_input(served: Served) -> None:
    config = (
        "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 5000000 }\n"
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        'batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_FP32 '
        'source_input: "INPUT0" } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    )
    name = served.loaded(config, saved(scripts.RaggedSum()))
    with ThreadPoolExecutor(2) as pool:
        ask = lambda row: served.infer(name, {"INPUT0": ("FP32", [row])})["OUTPUT0"].tolist()  # noqa: E731
        assert list(pool.map(ask, ([1, 2, 3], [10, 20]))) == [[[6]], [[30]]]


CONTROL = (
    'sequence_batching {{ control_input [ {{ name: "{name}" control [ {{ kind: {kind} {values} }} ] }} ] {more} }}\n'
)


@pytest.mark.rows("BT19")
def test_controls_have_ordinals(served: Served) -> None:
    ready = CONTROL.format(name="READY", kind="CONTROL_SEQUENCE_READY", values="fp32_false_true: [ 0, 1 ]", more="")
    reason = served.refused("max_batch_size: 4\n" + ECHO + ready, saved(scripts.Sequence()))
    assert "Internal: input 'READY' does not follow <name>__<index> naming convention." in reason


def test_correlation_id_of_64_bits(served: Served) -> None:
    """Triton refuses UINT64 (BT19); torch has it now."""
    control = CONTROL.format(name="ID__1", kind="CONTROL_SEQUENCE_CORRID", values="data_type: TYPE_UINT64", more="")
    config = "max_batch_size: 4\n" + io([("INPUT0", "FP32", [1])], [("OUTPUT__0", "UINT64", [1])]) + control
    name = served.loaded(config, saved(SecondArgument()))
    answer = served.infer(
        name, {"INPUT0": ("FP32", [[0]])}, sequence_id=2**63 + 5, sequence_start=True, sequence_end=True
    )
    assert answer["OUTPUT__0"].tolist() == [[2**63 + 5]]


class SecondArgument(nn.Module):
    def forward(self, INPUT0: torch.Tensor, ID: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return ID


STATE = (
    'sequence_batching { state [ { input_name: "%s" output_name: "%s" data_type: TYPE_FP32 dims: [ 1 ] '
    'initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } ] }\n'
)


@pytest.mark.rows("BT20")
def test_implicit_states(served: Served) -> None:
    config = "max_batch_size: 4\n" + io([("value__0", "FP32", [1])], [("sum__0", "FP32", [1])])
    name = served.loaded(config + STATE % ("total__1", "next__1"), saved(scripts.Accumulate()))
    answers = [
        served.infer(name, {"value__0": ("FP32", [[n]])}, sequence_id=7, sequence_start=n == 1, sequence_end=n == 3)
        for n in (1, 2, 3)
    ]
    assert [each["sum__0"].tolist() for each in answers] == [[[1]], [[3]], [[6]]]
    reason = served.refused(config + STATE % ("total", "next__1"), saved(scripts.Accumulate()))
    assert "is using sequence batching with state but state 'total' does not follow the <name>__<index>" in reason
    named = "max_batch_size: 4\n" + io([("value", "FP32", [1])], [("sum__0", "FP32", [1])])
    reason = served.refused(named + STATE % ("total__1", "next__1"), saved(scripts.Accumulate()))
    assert "with state but not all inputs and outputs follow the <name>__<index> naming convention. " in reason


# ---- parameters


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


@pytest.mark.rows("BT22", "BT24", "BT25", "BT26")
def test_parameters(served: Served) -> None:
    keys = (
        *("INFERENCE_MODE", "DISABLE_OPTIMIZED_EXECUTION", "ENABLE_CACHE_CLEANING", "DISABLE_CUDNN"),
        *("ENABLE_JIT_PROFILING", "ENABLE_JIT_EXECUTOR", "ENABLE_TENSOR_FUSER"),
    )
    name = served.loaded(ECHO + "".join(parameter(key, "oN") for key in keys), saved(scripts.Echo()))
    assert served.infer(name, {"INPUT0": ("FP32", [1, 2])})["OUTPUT0"].tolist() == [1, 2]
    for what, word in (
        *(("Optimized execution", "disabled"), ("cuDNN", "disabled"), ("Cache Cleaning", "enabled")),
        ("Inference Mode", "enabled"),
    ):
        served.serving.until_logged(f"{what} is {word} for model instance '{name}'")
    served.serving.until_logged(f"for model instance '{name}'")
    other = served.loaded(ECHO + parameter("INFERENCE_MODE", "off"), saved(scripts.Echo()))
    assert served.infer(other, {"INPUT0": ("FP32", [1, 2])})["OUTPUT0"].tolist() == [1, 2]
    served.serving.until_logged(f"Inference Mode is disabled for model instance '{other}'")


@pytest.mark.rows("BT22", "BT26", "BC8")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("INFERENCE_MODE", "yes", "failed to convert 'yes' to boolean"),
        ("ENABLE_WEIGHT_SHARING", "2", "failed to convert '2' to boolean"),
        ("INTRA_OP_THREAD_COUNT", "many", "failed to convert 'many' to integral number"),
    ],
)
def test_parameters_that_mean_nothing(served: Served, key: str, value: str, text: str) -> None:
    assert f"Invalid argument: {text}" in served.refused(ECHO + parameter(key, value), saved(scripts.Echo()))


@pytest.mark.rows("BT26")
def test_threads_are_those_of_the_first_model_that_names_them(served: Served) -> None:
    first = served.loaded(ECHO + parameter("INTRA_OP_THREAD_COUNT", "2x"), saved(scripts.Echo()))
    served.serving.until_logged(f"Intra op thread count is set to 2 for model instance '{first}'")
    later = served.loaded(ECHO + parameter("INTRA_OP_THREAD_COUNT", "7"), saved(scripts.Echo()))
    served.serving.until_logged(f"Intra op thread count is set to 2 for model instance '{later}'")
    ignored = served.loaded(ECHO + parameter("INTRA_OP_THREAD_COUNT", "-1"), saved(scripts.Echo()))
    served.serving.until_logged(f"Intra op thread count is set to 2 for model instance '{ignored}'")


@pytest.mark.rows("BT23")
def test_instances_share_their_weights(served: Served) -> None:
    group = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
    name = served.loaded(ECHO + group, saved(scripts.Echo()))
    served.serving.until_logged(f"Reusing TorchScript model for instance '{name}_0_1'")
    apart = served.loaded(ECHO + group + parameter("ENABLE_WEIGHT_SHARING", "false"), saved(scripts.Echo()))
    stateful = served.loaded(
        io([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [512])]) + group, saved(scripts.Counting())
    )
    served.infer(stateful, {"INPUT0": ("FP32", [0])})
    assert not served.log(f"Reusing TorchScript model for instance '{apart}")
    assert not served.log(f"Reusing TorchScript model for instance '{stateful}")


def test_answers_are_not_changed_by_the_next_batch(served: Served) -> None:
    """The module answers with memory of its own, which its next run changes."""
    name = served.loaded(io([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1, 512])]), saved(scripts.Counting()))
    answers = [served.infer(name, {"INPUT0": ("FP32", [0])})["OUTPUT0"][0, 0] for _ in range(3)]
    assert answers == [1, 2, 3]


def test_modules_are_in_evaluation_mode(served: Served) -> None:
    name = served.loaded(io([("INPUT0", "FP32", [64])], [("OUTPUT0", "FP32", [64])]), saved(scripts.Dropout()))
    assert served.infer(name, {"INPUT0": ("FP32", [1] * 64)})["OUTPUT0"].tolist() == [1] * 64


def test_input_that_a_module_writes_into_is_a_copy(served: Served) -> None:
    """The request's memory may be that of another step of an ensemble."""
    step = 'step [ { model_name: "%s" model_version: -1 input_map { key: "INPUT0" value: "IN" } output_map { key: '
    step += '"OUTPUT0" value: "%s" } } ]\n'
    wide: Any = [("INPUT0", "FP32", [1024])], [("OUTPUT0", "FP32", [1024])]
    double = served.loaded(io(*wide), saved(scripts.Doubling()))
    echo = served.loaded(io(*wide), saved(scripts.Echo()))
    config = 'platform: "ensemble"\n' + io([("IN", "FP32", [1024])], [("A", "FP32", [1024]), ("B", "FP32", [1024])])
    name = served.loaded(
        config + "ensemble_scheduling {\n" + step % (double, "A") + step % (echo, "B") + "}\n", lambda path: None
    )
    for _ in range(5):
        answer = served.infer(name, {"IN": ("FP32", [1] * 1024)})
        assert (answer["A"][0], answer["B"][0]) == (2, 1)
        time.sleep(0)


@pytest.mark.rows("BC12")
def test_profiles_are_for_another_backend(served: Served) -> None:
    group = 'instance_group [ { profile: [ "1" ] } ]\n'
    name = served.write(ECHO + group, saved(scripts.Echo()))
    assert (
        f"instance group {name}_0 of model {name} and platform pytorch_libtorchspecifies profile field which is only "
        "supported for TensorRT models"
    ) in served.load(name)
