"""Tells whether values in the input of a graph decide how much a run does: how often a loop runs, or how large a tensor
becomes. Then a request can take any time and memory, although others of its size are quick and small.

Values are followed from node to node. A shape that is computed from the shape of an input is not such a value. Each
runtime brings its nodes and its operators. Pure, any thread.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import NamedTuple


class Node(NamedTuple):
    """An operator of a graph. Its arguments and results have any names."""

    kind: str
    takes: Collection[Hashable]
    gives: Collection[Hashable]


class Operators(NamedTuple):
    """loops -- run something as often as a value says, or hide what they run
    sizes -- by operator, the arguments whose values decide how large its result is
    shapes -- their results depend on the shape of a tensor, not on its values
    """

    loops: frozenset[str]
    sizes: Mapping[str, frozenset[int]]
    shapes: frozenset[str]


def values_decide(nodes: Iterable[Node], inputs: Iterable[Hashable], operators: Operators) -> bool:
    """Whether values decide the work of a run. A node follows those whose results it takes."""
    values = set(inputs)
    for node in nodes:
        if node.kind in operators.loops:
            return True
        sizes = operators.sizes.get(node.kind, ())
        if any(i in sizes and name in values for i, name in enumerate(node.takes)):
            return True
        if node.kind not in operators.shapes and not values.isdisjoint(node.takes):
            values.update(node.gives)
    return False
