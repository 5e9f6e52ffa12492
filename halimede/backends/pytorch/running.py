"""A model of torch as the instances call it, and the path from its results to outputs.

Every batch passes here. On the thread that runs the batch.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from halimede.backends.pytorch.binding import Binding, Output
from halimede.backends.pytorch.effects import Effects
from halimede.backends.pytorch.parameters import Options
from halimede.backends.pytorch.texts import Texts
from halimede.backends.pytorch.values import DATATYPES_OF, DTYPES, array_of, array_of_texts
from halimede.errors import Error
from halimede.tensors import BYTES


@dataclass(frozen=True)
class Loaded:
    """A module on its device, ready to run.

    call -- takes the arguments, returns the result: a tensor, or a list or tuple of results
    batches -- whether requests may share a run
    """

    call: Callable[..., Any]
    effects: Effects
    batches: bool = True


class Runner:
    """Calls a model under its options, and finds its outputs among the results."""

    def __init__(self, loaded: Loaded, binding: Binding, texts: Texts, options: Options) -> None:
        self._call = loaded.call
        self.binding = binding
        self.effects = loaded.effects
        self.texts = texts
        self._options = options
        self._mode: Callable[[], AbstractContextManager[object]] = (
            torch.inference_mode if options.inference_mode else torch.no_grad
        )
        self._is_plain = options.optimized and not options.sets_jit

    def close(self) -> None:
        """Lets go of the module: a late reference to an instance holds no memory of it."""
        self._call = _closed

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The results in order. Raises Error with the words of `texts`."""
        binding = self.binding
        given = (dict(zip(binding.inputs, arguments, strict=True)),) if binding.as_dict else arguments
        try:
            with self._mode():
                if self._is_plain:
                    result = self._call(*given)
                else:
                    with _settings(self._options):
                        result = self._call(*given)
        except Error:
            raise
        except Exception as error:
            raise self.texts.failure(error) from error
        if isinstance(result, tuple):
            return result
        if isinstance(result, list) and not _is_texts(result):
            raise self.texts.no_tensor(_type_of(result), None)
        return (result,)

    def value(self, output: Output, results: Sequence[Any]) -> Any:
        """The result for an output: a tensor of its datatype, or a list of strings. Raises Error."""
        if output.position >= len(results):
            raise self.texts.missing(output.name, output.position, len(results))
        found = results[output.position]
        if isinstance(found, torch.Tensor):
            # BYTES has no dtype here, so a tensor for it is refused too.
            if found.dtype is not DTYPES.get(output.datatype):
                raise self.texts.wrong_type(output.name, output.datatype, _name_of(found.dtype))
            if not found.dim():
                raise self.texts.scalar(output.name)
        elif not _is_texts(found):
            raise self.texts.no_tensor(_type_of(found), None if len(results) == 1 else output.position)
        elif output.datatype is not BYTES:
            raise self.texts.wrong_type(output.name, output.datatype, BYTES.config_name)
        return found

    def arrays(self, results: Sequence[Any]) -> dict[str, Any]:
        """The outputs on the host. Raises Error."""
        own = self.effects.returns_own or self.effects.keeps_state
        outputs = {}
        for output in self.binding.outputs:
            value = self.value(output, results)
            if isinstance(value, list):
                outputs[output.name] = array_of_texts(value)
            else:
                outputs[output.name] = array_of(value, output.datatype, own)
        return outputs


def _closed(*arguments: Any) -> NoReturn:
    raise RuntimeError("this instance is closed")


def _settings(options: Options) -> AbstractContextManager[object]:
    """Sets what a model wants of the compiler (BT22, BT25). Only the first is of the thread; the others stay."""
    if options.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(options.jit_profiling)
    if options.jit_executor is not None:
        torch._C._jit_set_profiling_executor(options.jit_executor)
    if options.tensor_fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(options.tensor_fuser)
    return nullcontext() if options.optimized else torch.jit.optimized_execution(False)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _name_of(dtype: Any) -> str:
    known = DATATYPES_OF.get(dtype)
    return "TYPE_<invalid>" if known is None else known.config_name


def _type_of(value: Any) -> str:
    if isinstance(value, list):
        return f"List[{_type_of(value[0])}]" if value else "List[]"
    return type(value).__name__
