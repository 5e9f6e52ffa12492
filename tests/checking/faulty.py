"""A repository in which every model has one fault of its own, with what `halimede check` shall say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.backends.onnx_models import add_and_subtract, identity

_IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
_CODE = """class TritonPythonModel:
    def execute(self, requests):
        return []
"""
_WARMUP = """model_warmup [ { name: "w" batch_size: 1 inputs { key: "x"
  value { data_type: TYPE_FP32 dims: 4 input_data_file: "gone" } } } ]
"""
_CHECKSUM = """model_repository_agents { agents [ { name: "checksum"
  parameters { key: "MD5:1/model.onnx" value: "0" } } ] }
"""
_ASKS = {"1/model.py": f"{_CODE}        get_input_tensor_by_name(requests[0], 'IN')\n".encode()}
_MODEL = {"1/model.onnx": identity("FP32", [4])}
_PYTHON = {"1/model.py": _CODE.encode()}


@dataclass(frozen=True)
class Fault:
    """`line` is that of the configuration, or of `file`; 0 where there is none."""

    name: str
    config: str
    code: str
    line: int
    text: str
    instead: str = ""
    severity: str = "error"
    file: str = "config.pbtxt"
    files: Mapping[str, bytes] = field(default_factory=lambda: _MODEL)


def _onnx(more: str = "", io: str = _IO) -> str:
    return f'backend: "onnxruntime"{io}{more}'


def _input(more: str) -> str:
    """With this for the input beside its name, which is on line 2."""
    return f'\ninput [ {{ name: "x"{more} }} ]\noutput {{ name: "y" data_type: TYPE_FP32 dims: 4 }}'


def _labelled(file: str) -> str:
    start, output, rest = _IO.partition("output")
    return start + output + rest.replace("dims: [ 4 ]", f'\n dims: [ 4 ]\n label_filename: "{file}"')


def _step(model: str, put: str = "x", got: str = "y", tensor: str = "y") -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1\n'
        f' input_map {{ key: "{put}" value: "x" }}\n'
        f' output_map {{ key: "{got}" value: "{tensor}" }} }}\n'
    )


def _ensemble(*steps: str) -> str:
    return f'platform: "ensemble"{_IO}ensemble_scheduling {{\n{"".join(steps)}}}\n'


FAULTS = (
    Fault(
        "unknown_field",
        _onnx("max_batchsize: 4\n"),
        "unknown-field",
        4,
        "unknown field 'max_batchsize'",
        "'max_batch_size'",
    ),
    Fault(
        "unknown_inside",
        _onnx("dynamic_batching {\n max_queue_delay: 9\n}"),
        "unknown-field",
        5,
        "of 'dynamic_batching'",
        "max_queue_delay_microseconds",
    ),
    Fault(
        "misplaced_field", _onnx("count: 2\n"), "unknown-field", 4, "unknown field 'count'", "instance_group { count"
    ),
    Fault(
        "wrong_enum",
        _onnx(io=_input("\n data_type: FP32\n dims: [ 4 ]")),
        "wrong-value",
        3,
        "no value 'FP32'",
        "data_type: TYPE_FP32",
    ),
    Fault(
        "wrong_kind", _onnx("instance_group [\n { kind: GPU }\n]"), "wrong-value", 5, "no value 'GPU'", "kind: KIND_GPU"
    ),
    Fault(
        "text_for_number",
        _onnx('max_batch_size: "4"\n'),
        "wrong-value",
        4,
        "Couldn't parse integer",
        "max_batch_size: 4",
    ),
    Fault(
        "twice",
        _onnx('default_model_filename: "model.onnx"\n' * 2),
        "wrong-value",
        5,
        "multiple",
        "keep one 'default_model_filename'",
    ),
    Fault(
        "two_schedulers",
        _onnx("dynamic_batching { }\nsequence_batching { }\n"),
        "wrong-value",
        5,
        "another member of oneof",
        "keep one",
    ),
    Fault("open_bracket", _onnx("dynamic_batching {\n"), "syntax", 4, "brackets do not match", "1 more"),
    Fault(
        "zero_dims",
        _onnx(io=_input(" data_type: TYPE_FP32\n\n dims: [ 0 ]")),
        "tensor",
        4,
        "must be integer >= 1",
        "sizes of 1 or more",
    ),
    Fault("no_dims", _onnx(io=_input("\n data_type: TYPE_FP32")), "tensor", 2, "must specify 'dims'", "dims: [ -1 ]"),
    Fault(
        "negative_batch", _onnx("max_batch_size: -1\n"), "configuration", 4, "must be non-negative", "max_batch_size: 0"
    ),
    Fault(
        "preferred_sizes",
        _onnx("dynamic_batching {\n preferred_batch_size: [ 8 ]\n}"),
        "configuration",
        5,
        "preferred size must be <=",
        "larger max_batch_size",
    ),
    Fault("other_name", 'name: "another"\n' + _onnx(), "name", 1, "unexpected directory name", 'name: "other_name"'),
    Fault(
        "no_version",
        _onnx(),
        "version",
        0,
        "at least one version must be available",
        "put model.onnx into ",
        files={},
    ),
    Fault("leading_zeros", _onnx(), "version", 0, "'001'", "rename 001 to 1", "warning", "", {"001/x": b"", **_MODEL}),
    Fault("odd_directory", _onnx(), "version", 0, "'final'", "a number", "warning", "", {"final/x": b"", **_MODEL}),
    Fault(
        "version_not_there",
        _onnx("version_policy { specific {\n versions: [ 1, 7 ] } }"),
        "version",
        5,
        "version 7 is specified",
        "make the directory",
        "warning",
    ),
    Fault(
        "no_file",
        _onnx(),
        "model-file",
        0,
        "unable to find",
        "put model.onnx into ",
        file="",
        files={"1/notes.txt": b""},
    ),
    Fault(
        "other_file",
        _onnx(),
        "model-file",
        0,
        "unable to find",
        'default_model_filename: "resnet.onnx"',
        file="",
        files={"1/resnet.onnx": _MODEL["1/model.onnx"]},
    ),
    Fault("other_backend", _onnx(), "model-file", 0, "unable to find", 'backend: "python"', file="", files=_PYTHON),
    Fault("no_onnx", _onnx(), "model-file", 0, "onnx runtime error", file="", files={"1/model.onnx": b"<html>"}),
    Fault(
        "unknown_backend",
        'backend: "onnx"' + _IO,
        "backend",
        1,
        "unable to find backend library",
        'backend: "onnxruntime"',
    ),
    Fault(
        "misplaced",
        _IO,
        "no-backend",
        0,
        "Could not determine backend",
        "move '",
        files={"1/mine.onnx": _MODEL["1/model.onnx"]},
    ),
    Fault("nobody_knows", _IO, "no-backend", 0, "Could not determine backend", 'backend: "python"', files={"1/x": b""}),
    Fault("other_input", _onnx(io=_IO.replace('"x"', '"z"')), "model-file", 2, "unexpected inference input 'z'", "x"),
    Fault(
        "other_type",
        _onnx(io=_IO.replace("TYPE_FP32", "TYPE_INT8", 1)),
        "model-file",
        2,
        "expects datatype",
        "data_type: TYPE_FP32",
    ),
    Fault(
        "other_dims",
        _onnx(io=_IO.replace("[ 4 ] } ]\noutput", "[ 5 ] } ]\noutput")),
        "model-file",
        2,
        "specifies 1 dimensions",
        "dims: [ 4 ]",
    ),
    Fault(
        "too_few_inputs",
        _onnx(io=_IO.replace('"x"', '"a"').replace('"y"', '"sum"')),
        "model-file",
        2,
        "model provides 2",
        "2 inputs",
        files={"1/model.onnx": add_and_subtract([4])},
    ),
    Fault(
        "no_gpu",
        _onnx("instance_group [ { kind: KIND_CPU },\n { kind: KIND_GPU\n gpus: [ 99 ] } ]"),
        "instance-group",
        6,
        "invalid or unsupported gpu id 99",
        "--gpu-fallback=cpu for the server, or kind: KIND_CPU and no gpus",
    ),
    Fault(
        "no_agent",
        _onnx('model_repository_agents { agents [\n { name: "unpack" } ] }'),
        "agent",
        5,
        "no repository agent 'unpack'",
        "agent.py",
    ),
    Fault("checksum", _onnx(_CHECKSUM), "agent", 5, "Mismatched MD5", 'value: "'),
    Fault("labels_missing", _onnx(io=_labelled("names.txt")), "labels", 5, "names.txt", "the missing file"),
    Fault(
        "labels_count",
        _onnx(io=_labelled("l.txt")),
        "labels",
        3,
        "has 2 lines",
        "one line for each",
        "warning",
        files={"l.txt": b"a\nb\n", **_MODEL},
    ),
    Fault("warmup", _onnx(_WARMUP), "warmup", 5, "gone"),
    Fault(
        "misspelt_config",
        "",
        "stray-file",
        0,
        "'config.pbtext' is not read",
        "rename it to config.pbtxt",
        "warning",
        "config.pbtext",
        {"config.pbtext": b"", **_MODEL},
    ),
    Fault(
        "model_outside",
        _onnx(),
        "stray-file",
        0,
        "outside a version directory",
        "/1/",
        "warning",
        "model.onnx",
        {"model.onnx": b"", **_MODEL},
    ),
    Fault(
        "python_syntax",
        f'backend: "python"{_IO}',
        "model-file",
        2,
        "invalid syntax",
        "",
        "error",
        "1/model.py",
        {"1/model.py": b"class TritonPythonModel:\n def (:\n"},
    ),
    Fault(
        "python_class",
        f'backend: "python"{_IO}',
        "model-file",
        1,
        "no class 'TritonPythonModel'",
        "execute",
        "error",
        "1/model.py",
        {"1/model.py": b"class Model:\n pass\n"},
    ),
    Fault(
        "python_name",
        f'backend: "python"{_IO}',
        "model-file",
        0,
        "does not exist; there is 'main.py'",
        "model.py",
        "error",
        "1",
        {"1/main.py": _CODE.encode()},
    ),
    Fault(
        "python_input",
        f'backend: "python"{_IO}',
        "model-file",
        4,
        "asks for the input 'IN'",
        "",
        "warning",
        "1/model.py",
        _ASKS,
    ),
    Fault("not_text", "", "syntax", 2, "UTF-8", files={"config.pbtxt": b"\n\xff\xfe", **_MODEL}),
    Fault(
        "missing_member",
        _ensemble(_step("nowhere")),
        "ensemble",
        5,
        "not available or ambiguous: nowhere",
        "same repository",
        files={"1/x": b""},
    ),
    Fault(
        "other_member_input",
        _ensemble(_step("good", put="IN")),
        "ensemble",
        6,
        "non-existing input IN",
        'key: "x"',
        files={"1/x": b""},
    ),
    Fault(
        "version_zero",
        _ensemble(_step("good").replace("model_version: -1", "")),
        "ensemble",
        5,
        "required version 0",
        "model_version: -1",
        files={"1/x": b""},
    ),
    Fault("unwritten", _ensemble(_step("good", tensor="z")), "configuration", 3, "is not used", files={"1/x": b""}),
    Fault(
        "round",
        _ensemble(_step("round")),
        "ensemble",
        4,
        "round -> round",
        "remove one of the steps",
        files={"1/x": b""},
    ),
)
"""`good` beside them has no fault."""


def write_faults(repository: Path) -> None:
    for fault in (*FAULTS, Fault("good", _onnx(), "", 0, "")):
        folder = repository / fault.name
        files = {"config.pbtxt": fault.config.encode(), **fault.files}
        if fault.name == "misspelt_config":
            del files["config.pbtxt"]
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
