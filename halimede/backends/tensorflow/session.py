"""Sessions of TensorFlow, and the path of a batch through one. Imports the runtime; in a child process only.

A session of the old interface runs both formats, and computes only the outputs that somebody asks for (BC5)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from halimede.backends.api import BaseInstance, Batch, Responses, cpu_share
from halimede.backends.tensorflow.settings import GRAPH, SessionPlan
from halimede.backends.tensorflow.signatures import Signature
from halimede.backends.texts import wrong_rows
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Internal
from halimede.tensors import BF16, BYTES, DataType

Array = npt.NDArray[Any]

_KEPT_CALLS = 64
"""Sets of outputs for which an instance keeps what runs them."""
_BITS = tf.bfloat16.as_numpy_dtype


def sees_gpus() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def open_session(path: Path, config: ModelConfig, signature: Signature, plan: SessionPlan, instances: int) -> Any:
    """A session with the model in it. Raises Internal with the runtime's words."""
    tf.get_logger().setLevel("ERROR")
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=_options(plan, instances))
    try:
        with graph.as_default():
            for library in plan.libraries:
                tf.load_op_library(library)
            if config.platform == GRAPH:
                definition = tf.compat.v1.GraphDef()
                definition.ParseFromString(path.read_bytes())
                tf.import_graph_def(definition, name="")
            else:
                tf.compat.v1.saved_model.load(session, list(signature.tags), str(path))
            if plan.init_ops:
                session.run(list(plan.init_ops))
    except Exception as error:  # the runtime raises more than its own exceptions, such as ValueError and KeyError
        session.close()
        raise _translated(error).blaming(Cause.FILE) from error
    return session


def _options(plan: SessionPlan, instances: int) -> Any:
    threads = cpu_share(instances).threads
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads if plan.intra_threads is None else plan.intra_threads,
        inter_op_parallelism_threads=threads if plan.inter_threads is None else plan.inter_threads,
        use_per_session_threads=plan.per_session_threads,
        allow_soft_placement=plan.soft_placement,
    )
    options.gpu_options.allow_growth = not plan.gpu_memory_fraction
    if plan.gpu_memory_fraction:
        options.gpu_options.per_process_gpu_memory_fraction = plan.gpu_memory_fraction
    if plan.jit_level is not None:
        options.graph_options.optimizer_options.global_jit_level = plan.jit_level
    if plan.mixed_precision:
        options.graph_options.rewrite_options.auto_mixed_precision = 1
    return options


def _translated(error: Exception) -> Internal:
    """Triton's backend passes on the bare text of the runtime."""
    return Internal(str(getattr(error, "message", "") or error) or type(error).__name__)


class TensorFlowInstance(BaseInstance):
    """One session, and for each set of outputs a function that runs it."""

    def __init__(self, config: ModelConfig, session: Any, signature: Signature) -> None:
        cut = {name for each in config.batch_outputs for name in each.targets}
        self._config = config
        self._session = session
        self._inputs = [(spec.name, spec.datatype) for spec in config.model_inputs]
        self._inputs += [(name, each.datatype) for each in config.batch_inputs for name in each.targets]
        self._outputs: dict[str, DataType] = {spec.name: spec.datatype for spec in config.model_outputs}
        self._by_rows = frozenset(name for name in self._outputs if config.max_batch_size and name not in cut)
        self._dims = {spec.name: spec.model_dims for spec in config.model_outputs}
        nodes = {tensor.name: tensor.node for tensor in (*signature.inputs, *signature.outputs)}
        self._feeds = [session.graph.get_tensor_by_name(nodes[name]) for name, _ in self._inputs]
        self._fetches = {name: session.graph.get_tensor_by_name(nodes[name]) for name in self._outputs}
        self._calls: dict[tuple[str, ...], Callable[..., Sequence[Any]]] = {}

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal with the runtime's words, or where the number of rows does not fit."""
        arrays = batch.arrays()
        rows = sum([each.batch_size for each in batch.requests])
        asked = frozenset().union(*[each.outputs for each in batch.requests])
        names = tuple(name for name in self._outputs if name in asked)
        given = [
            _given(arrays[name], datatype, feed.shape.rank == 0)
            for (name, datatype), feed in zip(self._inputs, self._feeds, strict=True)
        ]
        try:
            values = self._call(names)(*given)
        except Exception as error:  # the runtime raises more than its own exceptions
            raise _translated(error) from error
        outputs = {name: _taken(value, self._outputs[name]) for name, value in zip(names, values, strict=True)}
        for name, array in outputs.items():
            if name in self._by_rows and array.shape[:1] != (rows,):
                raise wrong_rows(self._config.name, name, array.shape, rows)
            if not array.ndim and self._dims[name]:
                outputs[name] = array.reshape(self._dims[name])
        responses.scatter(outputs)

    def close(self) -> None:
        self._calls.clear()
        self._session.close()

    def _call(self, names: tuple[str, ...]) -> Callable[..., Sequence[Any]]:
        found = self._calls.get(names)
        if found is None:
            found = self._session.make_callable([self._fetches[name] for name in names], self._feeds)
            if len(self._calls) < _KEPT_CALLS:
                self._calls[names] = found
        return found


def _given(array: Array, datatype: DataType, is_scalar: bool) -> Array:
    if is_scalar:
        array = array.reshape(())
    return array.view(_BITS) if datatype is BF16 else array


def _taken(value: Any, datatype: DataType) -> Array:
    if datatype is BYTES:
        return np.asarray(value, object)
    array = np.asarray(value)
    return array.view(np.uint16) if datatype is BF16 else array
