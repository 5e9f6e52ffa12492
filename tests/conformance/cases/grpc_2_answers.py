"""Contract 2, responses of models (G25, H45): one, none and two of them, and their parameters."""

from tests.conformance.case import Because, GrpcCase, Instead, grpc

_STREAM = "ModelStreamInfer"


def _often(count: int) -> str:
    tensor = f'name: "INPUT0" datatype: "INT32" shape: 1 contents {{ int_contents: {count} }}'
    return f'model_name: "answers_often" id: "q" inputs {{ {tensor} }}'


def _on_stream(count: int, because: Because, reason: str, *lines: str) -> GrpcCase:
    said = "\n".join(["message", *(f"  {line}" for line in lines), "status OK"])
    return grpc(
        f"a model that answers {count} times, on a stream",
        "G25",
        _STREAM,
        _often(count),
        instead=Instead(because, reason, said),
    )


_FIRST = "a model that breaks after its response has answered; the real server takes its error for a second response"


def _flag(name: str, value: str) -> tuple[str, ...]:
    return ("  parameters {", f'    key: "{name}"', "    value {", f"      {value}", "    }", "  }")


_FINAL = _flag("triton_final_response", "bool_param: true")
_HEAD = ('  model_name: "answers_often"', '  model_version: "1"', '  id: "q"')
_OUTPUT = ("  outputs {", '    name: "OUTPUT0"', '    datatype: "INT32"', "    shape: 1", "  }")


def _raw(value: int) -> str:
    return rf'  raw_output_contents: "\00{value}\000\000\000"'


CASES: tuple[GrpcCase, ...] = (
    *(grpc(f"a model that answers {count} times", "G25", "ModelInfer", _often(count)) for count in (0, 1)),
    grpc(
        "a model that answers 2 times",
        "G25",
        "ModelInfer",
        _often(2),
        instead=Instead(Because.PURPOSE, _FIRST, "\n".join(["message", *_HEAD, *_OUTPUT, _raw(2), "status OK"])),
    ),
    grpc("a model that answers 0 times, on a stream", "G25", _STREAM, _often(0)),
    *(
        _on_stream(
            count,
            Because.RIGHT,
            "2.51 calls no response the final one where a model says that it ends apart from it, or breaks",
            "infer_response {",
            *(*_HEAD, *_FINAL, *_OUTPUT, _raw(count)),
            "}",
        )
        for count in (1, 2)
    ),
)
