"""Forests on a GPU, by nvforest, which only an instance on a GPU imports."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.fil.forest import Forest
from halimede.backends.fil.settings import Settings, gpu_layout
from halimede.errors import Cause, Internal, Unavailable

Array = npt.NDArray[Any]


@cache
def has_nvforest() -> bool:
    return find_spec("nvforest") is not None


class NvForest:
    """A predictor on one GPU. Rows go there and outputs come back for each batch."""

    def __init__(self, forest: Forest, device: int, settings: Settings) -> None:
        layout = gpu_layout(settings.layout)
        try:
            # Arrays of cupy are on the GPU that is current in their thread.
            self._on_device: Callable[[], AbstractContextManager[object]] = partial(
                import_module("cupy").cuda.Device, device
            )
            load = import_module("nvforest").load_from_treelite_model
            self._model = load(
                forest.model, device="gpu", device_id=device, layout=layout, default_chunk_size=settings.chunk_size
            )
        except Exception as error:
            raise Unavailable(f"nvforest could not use GPU {device}: {error}").blaming(Cause.MACHINE) from error
        # A classifier's `predict` returns classes, and its `predict_proba` what the forest returns.
        self._run = self._model.predict_proba if forest.is_classification else self._model.predict
        self._classes = forest.classes
        self._dtype = np.dtype(forest.dtype)

    def predict(self, rows: Array) -> Array:
        try:
            with self._on_device():
                result = self._run(np.ascontiguousarray(rows, self._dtype))
                # Outputs on the device are arrays of cupy, whose `get` copies them to the host.
                host = result.get() if hasattr(result, "get") else np.asarray(result)
        except Exception as error:
            raise Internal(str(error)) from error
        found: Array = host.reshape(len(rows), self._classes)
        return found
