"""Triton's backends that this server does not have: their names and formats, so that the texts and the search order of
model files are Triton's (R41, R54, R70, R71).

A backend that is built for this server moves from here into a package of its own.
"""

from halimede.backends.traits import Format, Traits

TENSORFLOW = Traits(
    "tensorflow",
    formats=(
        Format("model.savedmodel", "tensorflow_savedmodel", directory=True),
        Format("model.graphdef", "tensorflow_graphdef", directory=False),
    ),
    guesses_format=False,  # either of them may be meant
)
TENSORRT = Traits("tensorrt", formats=(Format("model.plan", "tensorrt_plan", directory=False),))
OPENVINO = Traits("openvino", formats=(Format("model.xml"),))
PYTORCH = Traits(
    "pytorch",
    formats=(Format("model.pt", "pytorch_libtorch", directory=False), Format("model.pt2", "torch_aoti")),
)
OTHERS = tuple(map(Traits, ("tensorrtllm", "vllm", "dali", "fil")))
