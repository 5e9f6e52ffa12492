"""Where the boxes and lines of a drawing stand, in cells of a terminal: a column wide, a row high. Pure; any thread.

Steps stand in layers from top to bottom, each below those that it reads from, so that steps of one layer may run at the
same time. A tensor is one line from the step that writes it to all that read it; between two layers it runs along a
row of its own, and past a layer in a column of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP = 3
"""Columns between what stands in one layer."""
PORT_GAP = 4
"""Columns between two lines that enter a box."""


@dataclass(frozen=True, slots=True)
class Node:
    """Something with lines: a step (`lines` of text in a box), or an input or output of the pipeline (one line, no
    box). `reads` and `writes` are numbers of tensors; `weight` is its share of the time, 0 to 1."""

    lines: tuple[str, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    boxed: bool = True
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Box:
    """`x`, `y` is its upper left corner."""

    x: int
    y: int
    width: int
    height: int
    node: Node


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor's line between two layers. `segments` are pairs of ends (x, y, x, y), horizontal or vertical, the upper
    or left end first; `heads` are where it enters something, from above; `label` are lines of text beside it, which
    begin at `label_at`."""

    tensor: int
    segments: tuple[tuple[int, int, int, int], ...]
    heads: tuple[tuple[int, int], ...]
    label: tuple[str, ...] = ()
    label_at: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Drawing:
    width: int
    height: int
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]


@dataclass(slots=True, eq=False)
class _Item:
    """A node in its layer, or where a line passes one. `extent` is how wide it is with the labels of its lines; `tops`
    are the columns of the lines that enter it, by tensor, `bottoms` of those that leave it, from its left edge."""

    node: Node | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    width: int
    extent: int
    x: int = 0
    tops: dict[int, int] = field(default_factory=dict)
    bottoms: dict[int, int] = field(default_factory=dict)

    @property
    def height(self) -> int:
        if self.node is None:
            return 0
        return len(self.node.lines) + 2 * self.node.boxed


Labels = dict[int, tuple[str, ...]]
_Layers = list[list[_Item]]


def layout(nodes: Sequence[Node], labels: Labels) -> Drawing:
    """`labels` are the lines of text beside the tensors that have any. A tensor that nobody writes has no line."""
    layers = _layered(nodes, labels)
    _order(layers)
    _place(layers)
    return _draw(layers, labels)


# ---- layers


def _layered(nodes: Sequence[Node], labels: Labels) -> _Layers:
    depth = _depths(nodes)
    last = max(depth, default=0)
    layers: _Layers = [[] for _ in range(last + 1)]
    for node, level in zip(nodes, depth, strict=True):
        layers[level].append(_item(node, labels))
    writer = {tensor: level for node, level in zip(nodes, depth, strict=True) for tensor in node.writes}
    lowest: dict[int, int] = {}
    for node, level in zip(nodes, depth, strict=True):
        for tensor in node.reads:
            lowest[tensor] = max(level, lowest.get(tensor, 0))
    for tensor, level in lowest.items():
        for passed in range(writer.get(tensor, level) + 1, level):
            layers[passed].append(_Item(None, (tensor,), (tensor,), 1, 1, bottoms={tensor: 0}))
    return layers


def _depths(nodes: Sequence[Node]) -> list[int]:
    """Of each node its layer; outputs of the pipeline stand in the last."""
    writer = {tensor: number for number, node in enumerate(nodes) for tensor in node.writes}
    depth: dict[int, int] = {}
    waiting = dict(enumerate(nodes))
    while waiting:
        ready = [n for n, node in waiting.items() if all(writer.get(t, -1) not in waiting for t in node.reads)]
        for number in ready or list(waiting):  # what waits for itself stands anywhere
            above = [depth.get(writer[t], 0) for t in nodes[number].reads if t in writer]
            depth[number] = max(above, default=-1) + 1
            waiting.pop(number)
    last = max(depth.values(), default=0)
    return [last if node.reads and not node.boxed else depth[number] for number, node in enumerate(nodes)]


def _item(node: Node, labels: Labels) -> _Item:
    text = max((len(line) for line in node.lines), default=0)
    width = text + 4 * node.boxed
    wide = [max((len(line) for line in labels.get(tensor, ())), default=0) for tensor in node.writes]
    offsets = (
        [2 + sum(wide[:i]) + i * PORT_GAP for i in range(len(wide))] if len(wide) > 1 else [width // 2] * len(wide)
    )
    offsets = [offset - offset % 2 for offset in offsets]
    reach = max((offset + 2 + label for offset, label in zip(offsets, wide, strict=True)), default=0)
    ports = max(offsets[-1] + 3 if offsets else 0, PORT_GAP * len(node.reads) + 1 if node.boxed else 0)
    width = max(width, ports) if node.boxed else width
    bottoms = dict(zip(node.writes, offsets, strict=True))
    return _Item(node, node.reads, node.writes, width, max(width, reach), bottoms=bottoms)


# ---- places within a layer


def _order(layers: _Layers) -> None:
    """Neighbours stand near those they are connected to: few lines cross."""
    for _ in range(4):
        for above, below in pairwise(layers):
            _sort(below, above, down=True)
        for above, below in reversed(list(pairwise(layers))):
            _sort(above, below, down=False)
    for above, below in pairwise(layers):
        _sort(below, above, down=True)


def _sort(layer: list[_Item], other: list[_Item], down: bool) -> None:
    """By the middle of the places where the lines of each come from (`down`) or go to."""
    places: dict[int, list[float]] = {}
    for rank, item in enumerate(other):
        tensors = item.writes if down else item.reads
        for i, tensor in enumerate(tensors):
            places.setdefault(tensor, []).append(rank + (i + 1) / (len(tensors) + 1))

    def place(pair: tuple[int, _Item]) -> float:
        rank, item = pair
        found = [each for tensor in (item.reads if down else item.writes) for each in places.get(tensor, ())]
        return sum(found) / len(found) if found else rank + 0.5

    layer[:] = [item for _, item in sorted(enumerate(layer), key=place)]


def _place(layers: _Layers) -> None:
    for layer in layers:
        _pack(layer, [0.0] * len(layer))
    widest = max((_right(layer) for layer in layers), default=0)
    for layer in layers:
        shift = (widest - _right(layer)) // 2
        _pack(layer, [item.x + shift for item in layer])
    for _ in range(3):
        for above, below in pairwise(layers):
            _pack(below, [_wanted(item, item.reads, above) for item in below])
        for above, below in reversed(list(pairwise(layers))):
            _pack(above, [_wanted_above(item, below) for item in above])
    for above, below in pairwise(layers):
        _pack(below, [_wanted(item, item.reads, above) for item in below])
    left = min((item.x for layer in layers for item in layer), default=0)
    for layer in layers:
        for item in layer:
            item.x -= left - left % 2  # bottoms stay in even columns


def _right(layer: Sequence[_Item]) -> int:
    return max((item.x + item.extent for item in layer), default=0)


def _wanted(item: _Item, reads: Iterable[int], above: Sequence[_Item]) -> float:
    """The left edge that would have its middle below the lines that it reads."""
    ends = [other.x + other.bottoms[t] for t in reads for other in above if t in other.writes]
    return sum(ends) / len(ends) - item.width // 2 if ends else item.x


def _wanted_above(item: _Item, below: Sequence[_Item]) -> float:
    """The left edge that would have its lines above the middles of those that read them."""
    shifts = [other.x + other.width // 2 - item.bottoms[t] for t in item.writes for other in below if t in other.reads]
    return sum(shifts) / len(shifts) if shifts else item.x


def _pack(layer: Sequence[_Item], wanted: Sequence[float]) -> None:
    """As near as it goes to where they want to stand, in their order, with room between them, in even columns."""
    groups: list[tuple[float, int, list[tuple[_Item, int]]]] = []  # left edge, width, items with their offsets
    for item, want in zip(layer, wanted, strict=True):
        size = item.extent + GAP
        size += size % 2
        groups.append((want, size, [(item, 0)]))
        while len(groups) > 1 and groups[-2][0] + groups[-2][1] > groups[-1][0]:
            (want, wide, items), (later, more, others) = groups[-2:]
            count, many = len(items), len(others)
            start = (want * count + (later - wide) * many) / (count + many)
            groups[-2:] = [(start, wide + more, [*items, *((each, wide + at) for each, at in others)])]
    for start, _, items in groups:
        for each, at in items:
            each.x = round(start / 2) * 2 + at


# ---- lines


def _enter(below: Sequence[_Item], sources: dict[int, int]) -> None:
    """Gives each line the column where it enters what reads it: straight below where it comes from, or else an odd one,
    where no other line comes from."""
    for item in below:
        if item.node is None:
            [tensor] = item.reads
            others = {column for other, column in sources.items() if other != tensor}
            while item.x in others:
                item.x += 2
            item.tops = {tensor: item.x}
            continue
        left, right = (item.x + 2, item.x + item.width - 3) if item.node.boxed else (item.x, item.x + item.width - 1)
        if not item.node.boxed:
            middle = item.x + item.width // 2
            straight = next((sources[t] for t in item.reads if left <= sources.get(t, -1) <= right), middle | 1)
            item.tops = dict.fromkeys(item.reads, straight)
            continue
        _spread(item, left, right, sources)


def _spread(item: _Item, left: int, right: int, sources: dict[int, int]) -> None:
    tensors = sorted((t for t in dict.fromkeys(item.reads) if t in sources), key=lambda t: sources[t])
    taken = set(sources.values())
    middle = item.x + item.width // 2
    used: list[int] = []
    for i, tensor in enumerate(tensors):
        room = right - 2 * (len(tensors) - 1 - i)
        least = used[-1] + 2 if used else left
        column = sources[tensor]
        if not least <= column <= room:
            column = min(max(column, least), room) if len(tensors) > 1 else middle
            column = column if column not in taken else column + 1 if column + 1 <= room else column - 1
        used.append(column)
        item.tops[tensor] = column


def _draw(layers: _Layers, labels: Labels) -> Drawing:
    boxes: list[Box] = []
    wires: list[Wire] = []
    y = width = 0
    for number, layer in enumerate(layers):
        height = max((item.height for item in layer), default=0)
        for item in layer:
            if item.node is not None:
                boxes.append(Box(item.x, y, item.width, item.height, item.node))
        if number == len(layers) - 1:
            y += height
            break
        below = layers[number + 1]
        sources = {t: item.x + item.bottoms[t] for item in layer for t in item.writes}
        read = {t for item in below for t in item.reads}
        sources = {t: column for t, column in sources.items() if t in read}
        _enter(below, sources)
        starts = {t: y + item.height for item in layer for t in item.writes}
        y = _channel(layer, below, sources, starts, y + height, labels, wires)
    for box in boxes:
        width = max(width, box.x + box.width)
    for wire in wires:
        ends = [x for segment in wire.segments for x in (segment[0], segment[2])]
        width = max(width, max(ends) + 1, wire.label_at[0] + max((len(line) for line in wire.label), default=0))
    return Drawing(width, y, tuple(boxes), tuple(wires))


def _channel(
    layer: Sequence[_Item],
    below: Sequence[_Item],
    sources: dict[int, int],
    starts: dict[int, int],
    top: int,
    labels: Labels,
    wires: list[Wire],
) -> int:
    """Draws the lines between two layers, from row `top`; returns the row below them."""
    labelled = {t for item in layer if item.node is not None for t in item.writes if t in labels and t in sources}
    rows = max((len(labels[t]) for t in labelled), default=0)
    targets = {t: [(item.tops[t], item.node is not None) for item in below if t in item.tops] for t in sources}
    tracks = _tracks(sources, targets)
    end = top + max(rows + max(tracks.values(), default=-1) + 1, 1)
    for tensor, source in sources.items():
        begin, columns = starts[tensor], [column for column, _ in targets[tensor]]
        segments: list[tuple[int, int, int, int]] = []
        if tensor in tracks:
            row = top + rows + tracks[tensor]
            segments.append((source, begin, source, row))
            segments.append((min(source, *columns), row, max(source, *columns), row))
            segments += [(column, row, column, end) for column in dict.fromkeys(columns)]
        else:
            segments.append((source, begin, source, end))
        heads = tuple((column, end) for column, is_box in targets[tensor] if is_box)
        label = labels[tensor] if tensor in labelled else ()
        wires.append(Wire(tensor, tuple(segments), heads, label, (source + 2, top)))
    return end + 1


def _tracks(sources: dict[int, int], targets: dict[int, list[tuple[int, bool]]]) -> dict[int, int]:
    """The row of each line that has to go sideways: two that overlap are in different ones."""
    spans = {
        t: (min(source, *(c for c, _ in targets[t])), max(source, *(c for c, _ in targets[t])))
        for t, source in sources.items()
        if any(column != source for column, _ in targets[t])
    }
    rows: list[list[tuple[int, int]]] = []
    found: dict[int, int] = {}
    for tensor, (left, right) in sorted(spans.items(), key=lambda each: each[1]):
        row = next((n for n, used in enumerate(rows) if all(right < a - 1 or left > b + 1 for a, b in used)), len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append((left, right))
        found[tensor] = row
    return found
