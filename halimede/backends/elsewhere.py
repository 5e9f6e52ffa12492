"""Triton's backends that this server does not have. With their names and formats, error texts and the search order of
model files are Triton's (R41, R54, R70, R71).

When this server gets one of these backends, its entry moves into the package of the backend.
"""

from halimede.backends.traits import Traits

OTHERS = (
    Traits("tensorrtllm", conversion="run the original checkpoint in a model.py, for example with vLLM"),
    Traits(
        "vllm",
        conversion="put Triton's vLLM backend, which is Python, into the folder vllm of --backend-directory, and "
        "install vllm",
    ),
)
