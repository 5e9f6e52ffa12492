"""Texts of configurations."""

from collections.abc import Sequence


def tensors(field_name: str, *specs: tuple[str, str, Sequence[int]], more: str = "") -> str:
    """Inputs or outputs as the text of a configuration."""
    lines = [f'{{ name: "{name}" data_type: TYPE_{kind} dims: {list(dims)} {more} }}' for name, kind, dims in specs]
    return f"{field_name} [ {', '.join(lines)} ]\n"


def io(inputs: Sequence[tuple[str, str, Sequence[int]]], outputs: Sequence[tuple[str, str, Sequence[int]]]) -> str:
    return tensors("input", *inputs) + tensors("output", *outputs)


ECHO = io([("INPUT0", "FP32", [2])], [("OUTPUT0", "FP32", [2])])
"""The inputs and outputs of most models."""
