"""Triton's backends that this server does not have. With their names and formats, error texts and the search order of
model files are Triton's (R41, R54, R70, R71).

When this server gets one of these backends, its entry moves into the package of the backend.
"""

from halimede.backends.traits import Format, Traits

_IN_PYTHON = "or load it in a model.py"

TENSORRT = Traits(
    "tensorrt",
    formats=(Format("model.plan", "tensorrt_plan", directory=False),),
    conversion="export the model that the plan was made of to ONNX (a plan itself cannot be converted)",
)
OTHERS = (
    Traits("tensorrtllm", conversion="run the original checkpoint in a model.py, for example with vLLM"),
    Traits(
        "vllm",
        conversion="put Triton's vLLM backend, which is Python, into the folder vllm of --backend-directory, and "
        "install vllm",
    ),
)
