"""Builds an ONNX model that averages embeddings of any number of ids: an example of ragged batches.

    python examples/ragged/embedding_bag.py MODEL_REPOSITORY

This writes the model `embedding_bag` into MODEL_REPOSITORY. A request may have any number of ids (`IDS`, shape [1, k]).
The server concatenates the ids of a batch. It writes to `BOUNDS` where each request begins and where the last one ends,
so no request is padded. `MEAN` has a row for each request. Needs the packages `onnx` and `numpy`.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper


def table(rows: int = 1000, width: int = 16) -> npt.NDArray[np.float32]:
    """Random embeddings, a row for each id."""
    return np.random.default_rng(7).standard_normal((rows, width)).astype(np.float32)


def model(embeddings: npt.NDArray[np.float32]) -> bytes:
    """The model: MEAN[i] is the mean of embeddings[IDS[j]] for BOUNDS[i] <= j < BOUNDS[i + 1], zeros without ids."""
    width = embeddings.shape[1]
    steps = [
        # Cumulative sums, beginning with zeros. The sum of a request is the difference of two of them.
        ("Gather", ["embeddings", "IDS"], "rows"),
        ("CumSum", ["rows", "zero"], "sums_behind"),
        ("Concat", ["nothing", "sums_behind"], "sums"),
        ("Slice", ["BOUNDS", "zeros", "minus_ones"], "begins"),
        ("Slice", ["BOUNDS", "ones", "far"], "ends"),
        ("Gather", ["sums", "begins"], "sums_before_begins"),
        ("Gather", ["sums", "ends"], "sums_before_ends"),
        ("Sub", ["sums_before_ends", "sums_before_begins"], "totals"),
        ("Sub", ["ends", "begins"], "counts"),
        ("Max", ["counts", "one"], "divisors"),
        ("Cast", ["divisors"], "divisors_as_floats"),
        ("Unsqueeze", ["divisors_as_floats", "ones"], "column"),
        ("Div", ["totals", "column"], "MEAN"),
    ]
    settings = {"Concat": {"axis": 0}, "Cast": {"to": TensorProto.FLOAT}}
    constants = {
        "embeddings": embeddings,
        "nothing": np.zeros((1, width), np.float32),
        "zero": np.array(0, np.int64),
        "zeros": np.array([0], np.int64),
        "ones": np.array([1], np.int64),
        "minus_ones": np.array([-1], np.int64),
        "far": np.array([np.iinfo(np.int64).max], np.int64),
        "one": np.array(1, np.int32),
    }
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **settings.get(kind, {})) for kind, inputs, output in steps],
        "embedding_bag",
        [
            helper.make_tensor_value_info("IDS", TensorProto.INT64, ["ids"]),
            helper.make_tensor_value_info("BOUNDS", TensorProto.INT32, ["bounds"]),
        ],
        [helper.make_tensor_value_info("MEAN", TensorProto.FLOAT, ["requests", width])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def write(repository: Path) -> Path:
    """Writes the model into a repository, and returns its folder."""
    folder = repository / "embedding_bag"
    (folder / "1").mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "config.pbtxt", folder)
    (folder / "1" / "model.onnx").write_bytes(model(table()))
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the model embedding_bag into a model repository.")
    parser.add_argument("repository", type=Path, metavar="MODEL_REPOSITORY")
    try:
        print(write(parser.parse_args().repository))
    except OSError as error:
        sys.exit(f"embedding_bag: {error.filename}: {error.strerror}")
