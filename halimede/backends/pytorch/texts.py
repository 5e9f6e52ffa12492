"""The texts of Triton's PyTorch backend for what goes wrong in a run, one set for each kind of model.

Pure; needs no torch.
"""

from pathlib import Path
from traceback import extract_tb
from typing import Protocol

from halimede.errors import Error, Internal, Invalid
from halimede.tensors import DataType


def short(error: BaseException) -> str:
    """The text of an exception of torch, which may have none."""
    return str(error).strip() or type(error).__name__


class Texts(Protocol):
    """The errors of one kind of model."""

    def failure(self, error: BaseException) -> Error:
        """An exception in the model."""
        ...

    def missing(self, output: str, position: int, results: int) -> Error:
        """The model has no such result."""
        ...

    def wrong_type(self, output: str, expected: DataType, got: str) -> Error: ...
    def scalar(self, output: str) -> Error: ...
    def no_tensor(self, got: str, position: int | None) -> Error:
        """A result that is neither a tensor nor a list of strings. `position` is None if it is the only one."""
        ...


_RESULTS = (
    "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
    "Dictionary of Tensors or a Scalar"
)


class ScriptTexts:
    """Of TorchScript models (BT10 to BT12, BT14, BT15)."""

    def failure(self, error: BaseException) -> Error:
        return Internal(f"PyTorch execute failure: {short(error)}")

    def missing(self, output: str, position: int, results: int) -> Error:
        return Invalid(
            f"The output {output} in the model configuration refers to an output index which doesn't exist. This model "
            f"has {results} outputs"
        )

    def wrong_type(self, output: str, expected: DataType, got: str) -> Error:
        return Invalid(
            f"configuration expects datatype {expected.config_name} for output '{output}', model provides {got}"
        )

    def scalar(self, output: str) -> Error:
        return Invalid(f"output '{output}' is a scalar which is not supported.")

    def no_tensor(self, got: str, position: int | None) -> Error:
        if not got.startswith("List"):
            return Internal(f"PyTorch execute failure: {_RESULTS}")
        which = "output" if position is None else f"output at index {position}"
        return Internal(f"PyTorch execute failure: {which} must be of type Tensor or List[str], received {got}")


class ProgramTexts:
    """Of PT2 models (BT30). `instance` is the name of the instance."""

    def __init__(self, instance: str) -> None:
        self._where = f'Inductor model instance "{instance}"'
        self._frame = f'Failed to read output tensors for model instance "{instance}": {self._where} output tensor '

    def failure(self, error: BaseException) -> Error:
        return Internal(f"{self._where} execution failure: {short(error)}")

    def missing(self, output: str, position: int, results: int) -> Error:
        return Internal(f'{self._frame}"{output}" is result {position} of a model that has {results}')

    def wrong_type(self, output: str, expected: DataType, got: str) -> Error:
        return Internal(
            f'{self._frame}"{output}" has datatype {got} but model configuration expects {expected.config_name}.'
        )

    def scalar(self, output: str) -> Error:
        return Internal(f'{self._frame}"{output}" is a scalar which is not supported.')

    def no_tensor(self, got: str, position: int | None) -> Error:
        return Internal(f"{self._where} execution failure: a result is of type {got}, not a tensor")


class ModuleTexts:
    """Of Python modules (BT35), in the frame of Triton's Python models (P5). `folder` has the code of the model."""

    def __init__(self, instance: str, folder: Path) -> None:
        self._frame = f"Failed to process the request(s) for model instance '{instance}', message: "
        self._folder = str(folder)

    def failure(self, error: BaseException) -> Error:
        frames = [each for each in extract_tb(error.__traceback__) if each.filename.startswith(self._folder)]
        lines = [f"  {each.filename}({each.lineno}): {each.name}\n" for each in reversed(frames)]
        where = "\n\nAt:\n" + "".join(lines) if lines else ""
        return Internal(f"{self._frame}{type(error).__name__}: {short(error)}{where}")

    def missing(self, output: str, position: int, results: int) -> Error:
        return self._wrong(f"'forward' returned {results} tensors, and output '{output}' is number {position}")

    def wrong_type(self, output: str, expected: DataType, got: str) -> Error:
        return self._wrong(f"output '{output}' is {got}, and the configuration expects {expected.config_name}")

    def scalar(self, output: str) -> Error:
        return self._wrong(f"output '{output}' is a scalar, which has no dimensions")

    def no_tensor(self, got: str, position: int | None) -> Error:
        return self._wrong(f"'forward' must return tensors, not {got}")

    def _wrong(self, text: str) -> Error:
        return Internal(self._frame + text)
