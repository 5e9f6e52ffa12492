"""A drawing as text for a terminal. Pure; any thread."""

from halimede.devtools.graph_layout import Box, Drawing, Wire

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = " ││││┘┐┤│└┌├─┴┬┼"
"""By the directions in which a line leaves a cell. (A vertical end is as long as its cell.)"""
_PLAIN = str.maketrans("│┘┐┤└┌├─┴┬┼╭╮╰╯▼·", "|++++++-+++++++v/")


def text_of(drawing: Drawing, ascii_only: bool = False) -> str:
    """Lines of text, none of which ends in a blank."""
    cells = [[" "] * drawing.width for _ in range(drawing.height)]
    for wire in drawing.wires:
        _draw_wire(cells, wire)
    for wire in drawing.wires:
        for i, line in enumerate(wire.label):
            _write(cells, wire.label_at[0], wire.label_at[1] + i, line)
        for x, y in wire.heads:
            cells[y][x] = "▼"
    for box in drawing.boxes:
        _draw_box(cells, box)
    for wire in drawing.wires:
        x, y = wire.segments[0][:2]
        if y and cells[y - 1][x] == "─":
            cells[y - 1][x] = "┬"
    text = "\n".join("".join(row).rstrip() for row in cells)
    return text.translate(_PLAIN) if ascii_only else text


def _write(cells: list[list[str]], x: int, y: int, text: str) -> None:
    cells[y][x : x + len(text)] = text


def _draw_wire(cells: list[list[str]], wire: Wire) -> None:
    """Where it crosses another one, that which goes down is drawn and the other is behind it."""
    directions: dict[tuple[int, int], int] = {}
    for left, top, right, bottom in wire.segments:
        for x in range(left, right):
            directions[x, top] = directions.get((x, top), 0) | _RIGHT
            directions[x + 1, top] = directions.get((x + 1, top), 0) | _LEFT
        for y in range(top, bottom):
            directions[left, y] = directions.get((left, y), 0) | _DOWN
            directions[left, y + 1] = directions.get((left, y + 1), 0) | _UP
        directions.setdefault((left, top), _DOWN)
    start = wire.segments[0]
    directions[start[0], start[1]] |= _UP  # it comes out of something
    for (x, y), to in directions.items():
        if cells[y][x] in " ─" or to & (_UP | _DOWN):
            cells[y][x] = _LINES[to]


def _draw_box(cells: list[list[str]], box: Box) -> None:
    if not box.node.boxed:
        _write(cells, box.x, box.y, box.node.lines[0])
        return
    inner = box.width - 2
    _write(cells, box.x, box.y, "╭" + "─" * inner + "╮")
    for i, line in enumerate(box.node.lines):
        _write(cells, box.x, box.y + 1 + i, f"│{line:^{inner}}│")
    _write(cells, box.x, box.y + box.height - 1, "╰" + "─" * inner + "╯")
