"""The places of boxes, lines and labels: nothing lies on anything else, whatever the graph, and all lines arrive."""

import random
from collections.abc import Iterator

import pytest

from halimede.devtools.graph_layout import Drawing, Labels, Node, Wire, layout
from halimede.devtools.graph_text import text_of


def some_graph(seed: int) -> tuple[list[Node], Labels]:
    """Up to eight steps, each of which reads what is there and writes more."""
    generator = random.Random(seed)
    nodes = [Node((f"in{n} FP32[-1]",), writes=(n,), boxed=False) for n in range(generator.randint(1, 3))]
    there, read = list(range(len(nodes))), set[int]()
    for number in range(generator.randint(1, 8)):
        reads = tuple(generator.sample(there, min(len(there), generator.randint(1, 4))))
        writes = tuple(range(len(there), len(there) + generator.randint(1, 3)))
        lines = (f"model{number}" * generator.randint(1, 4), "python")[: generator.randint(1, 2)]
        nodes.append(Node(lines, reads, writes))
        read.update(reads)
        there += writes
    results = [tensor for tensor in there if tensor not in read or generator.random() < 0.2]
    nodes += [Node((f"out{tensor}",), reads=(tensor,), boxed=False) for tensor in results]
    return nodes, {tensor: (f"t{tensor}", f"FP32[-1,{tensor}]") for tensor in read}


def cells_of(wire: Wire) -> Iterator[tuple[int, int, bool]]:
    """With whether the line goes down there."""
    for left, top, right, bottom in wire.segments:
        assert left == right or top == bottom
        yield from ((x, y, left == right) for x in range(left, right + 1) for y in range(top, bottom + 1))


def assert_nothing_covers_anything(drawing: Drawing) -> None:
    taken = set[tuple[int, int]]()
    for box in drawing.boxes:
        assert box.x >= 0
        cells = {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}
        assert not cells & taken
        taken |= cells
    lines: dict[tuple[int, int, bool], int] = {}
    for wire in drawing.wires:
        for x, y, down in cells_of(wire):
            assert (x, y) not in taken
            assert 0 <= x < drawing.width
            assert lines.setdefault((x, y, down), wire.tensor) == wire.tensor, "two lines on top of each other"
    for wire in drawing.wires:
        for row, text in enumerate(wire.label):
            for x in range(wire.label_at[0], wire.label_at[0] + len(text)):
                at = x, wire.label_at[1] + row
                assert at not in taken
                assert not {(*at, False), (*at, True)} & lines.keys()
                taken.add(at)


def arrivals(drawing: Drawing) -> set[tuple[int, tuple[str, ...]]]:
    """Tensors, and what their lines point at: followed from the boxes that write them, layer by layer."""
    below = {(x, box.y): box.node for box in drawing.boxes for x in range(box.x, box.x + box.width)}
    found = set()
    for wire in drawing.wires:
        for x, y in wire.heads:
            found.add((wire.tensor, below[x, y + 1].lines))
    return found


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_nothing_covers_anything_and_all_lines_arrive(first: int) -> None:
    for seed in range(first, first + 50):
        nodes, labels = some_graph(seed)
        drawing = layout(nodes, labels)
        assert_nothing_covers_anything(drawing)
        assert arrivals(drawing) == {(tensor, node.lines) for node in nodes for tensor in node.reads}
        lines = text_of(drawing).split("\n")
        assert len(lines) == drawing.height
        assert max(map(len, lines)) <= drawing.width


def test_lines_are_whole_from_layer_to_layer() -> None:
    """A line that passes a layer goes on where it ended."""
    nodes, labels = some_graph(7)
    drawing = layout(nodes, labels)
    bottoms = {(x, box.y + box.height) for box in drawing.boxes for x in range(box.x, box.x + box.width)}
    ends = {(wire.tensor, x, y + 1) for wire in drawing.wires for x, y, down in cells_of(wire) if down}
    for wire in drawing.wires:
        x, y = wire.segments[0][:2]
        assert (x, y) in bottoms or (wire.tensor, x, y) in ends


def test_steps_that_may_run_at_once_stand_beside_each_other() -> None:
    nodes = [
        Node(("in",), writes=(0,), boxed=False),
        Node(("left",), (0,), (1,)),
        Node(("right",), (0,), (2,)),
        Node(("both",), (1, 2), (3,)),
        Node(("out",), (3,), boxed=False),
    ]
    rows = {box.node.lines[0]: box.y for box in layout(nodes, {}).boxes}
    assert rows["in"] < rows["left"] == rows["right"] < rows["both"] < rows["out"]


def test_steps_that_wait_for_each_other_are_drawn_all_the_same() -> None:
    """No server loads them; whoever wrote the configuration may look at it."""
    nodes = [Node(("one",), (1,), (0,)), Node(("other",), (0,), (1,)), Node(("out",), (1,), boxed=False)]
    assert {box.node.lines[0] for box in layout(nodes, {}).boxes} == {"one", "other", "out"}


def test_nothing_is_drawn_of_nothing() -> None:
    assert (layout([], {}).width, text_of(layout([], {}))) == (0, "")
