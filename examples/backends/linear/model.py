"""A backend for linear models that are stored as JSON: an example of serving a framework with Python only.

Each model of the backend `linear` has a file `linear.json` in its version directory, written by any framework:

    {"coefficients": [[0.5, -1.0], [2.0, 0.25]], "intercepts": [0.1, 0.2], "classes": ["cat", "dog"]}

There is one row of coefficients for each score. `classes` is optional. A model's configuration needs only the name of
the backend: inputs, outputs and batching follow from the file.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        """Completes the configuration from `linear.json`. Runs in a temporary process."""
        weights = read_weights(pb_utils.get_model_dir())
        scores, features = weights["coefficients"].shape
        config.add_input({"name": "FEATURES", "data_type": "TYPE_FP32", "dims": [features]})
        config.add_output({"name": "SCORES", "data_type": "TYPE_FP32", "dims": [scores]})
        if weights["classes"] is not None:
            config.add_output({"name": "CLASS", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(max(config.as_dict()["max_batch_size"], 64))
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        weights = read_weights(pb_utils.get_model_dir())
        self.coefficients = weights["coefficients"].T
        self.intercepts = weights["intercepts"]
        self.classes = weights["classes"]
        pb_utils.Logger.log_info(f"{args['model_name']}: {self.coefficients.shape[0]} features")

    def execute(self, requests):
        """Computes all requests with one multiplication, and gives each request its rows."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "FEATURES").as_numpy() for request in requests]
        scores = np.concatenate(inputs) @ self.coefficients + self.intercepts
        ends = np.cumsum([len(rows) for rows in inputs])
        return [self.response(rows) for rows in np.split(scores, ends[:-1])]

    def response(self, scores):
        outputs = [pb_utils.Tensor("SCORES", scores)]
        if self.classes is not None:
            outputs.append(pb_utils.Tensor("CLASS", self.classes[scores.argmax(axis=1)][:, None]))
        return pb_utils.InferenceResponse(outputs)


def read_weights(folder):
    """Reads `linear.json` as arrays. Raises ValueError if it is inconsistent.

    The format is JSON and not pickle, because loading a pickle can run any code."""
    values = json.loads(Path(folder, "linear.json").read_text(encoding="utf-8"))
    coefficients = np.array(values["coefficients"], np.float32)
    intercepts = np.array(values.get("intercepts", [0.0] * len(coefficients)), np.float32)
    if coefficients.ndim != 2 or intercepts.shape != (len(coefficients),):
        raise ValueError("linear.json: coefficients must be rows of numbers, with one intercept for each row")
    classes = values.get("classes")
    if classes is not None and len(classes) != len(coefficients):
        raise ValueError(f"linear.json: {len(coefficients)} rows of coefficients, but {len(classes)} classes")
    return {
        "coefficients": coefficients,
        "intercepts": intercepts,
        "classes": None if classes is None else np.array([name.encode() for name in classes], object),
    }
