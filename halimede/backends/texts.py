"""Errors that several backends raise in the same words (BC11, R74). Pure, any thread."""

from collections.abc import Iterable, Sequence

from halimede.errors import Internal, Invalid
from halimede.tensors import shape_text


def unexpected_tensor(word: str, name: str, allowed: Iterable[str]) -> Invalid:
    """The model has no such tensor. `word` is "input" or "output"."""
    return Invalid(f"unexpected inference {word} '{name}', allowed {word}s are: {', '.join(sorted(allowed))}")


def wrong_input_count(model: str, expected: int, provided: int, at_most: bool = False) -> Invalid:
    number = f"at most {provided}" if at_most else str(provided)
    return Invalid(f"unable to load model '{model}', configuration expects {expected} inputs, model provides {number}")


def wrong_shape(model: str, tensor: str, shape: Sequence[int], given: Sequence[int], batching: bool) -> Invalid:
    """The model has `shape`. The configuration gives `given`, with the batch dimension if it is batching."""
    told = f"(shape {shape_text(given)})"
    if batching:
        told = (
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {shape_text(given)})"
        )
    return Invalid(
        f"model '{model}', tensor '{tensor}': the model expects {len(shape)} dimensions (shape {shape_text(shape)}) "
        f"but the model configuration specifies {len(given)} dimensions {told}"
    )


def wrong_rows(model: str, output: str, shape: Sequence[int], rows: int) -> Internal:
    """A batching model answered with another number of rows than it was given."""
    return Internal(
        f"model '{model}', output '{output}': the model returned shape {shape_text(shape)} for a batch of {rows}, "
        "expecting the first dimension to be the batch size"
    )
