"""Triton's backends that this server does not have. With their names and formats, error texts and the search order of
model files are Triton's (R41, R54, R70, R71).

When this server gets one of these backends, its entry moves into the package of the backend.
"""

from halimede.backends.traits import Format, Traits

TENSORFLOW = Traits(
    "tensorflow",
    formats=(
        Format("model.savedmodel", "tensorflow_savedmodel", directory=True),
        Format("model.graphdef", "tensorflow_graphdef", directory=False),
    ),
    guesses_format=False,  # a configuration with only the backend may mean either format
)
TENSORRT = Traits("tensorrt", formats=(Format("model.plan", "tensorrt_plan", directory=False),))
OPENVINO = Traits("openvino", formats=(Format("model.xml"),))
PYTORCH = Traits(
    "pytorch",
    formats=(Format("model.pt", "pytorch_libtorch", directory=False), Format("model.pt2", "torch_aoti")),
)
OTHERS = tuple(map(Traits, ("tensorrtllm", "vllm", "dali", "fil")))
