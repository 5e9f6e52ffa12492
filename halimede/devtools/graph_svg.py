"""A drawing as SVG. Pure; any thread."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from halimede.devtools.graph_layout import Box, Drawing, Wire

CELL_WIDTH, CELL_HEIGHT = 8.4, 19.0
FONT = 14
MARGIN = 24
COLOURS = ("#2563eb", "#b45309", "#047857", "#7c3aed", "#be123c", "#0e7490")
"""Of the lines, in turn, so that an eye can follow one past another."""
_STYLE = f"""
text {{ font: {FONT}px ui-monospace, Menlo, Consolas, monospace; fill: #1f2937 }}
.title {{ font-weight: 700 }}
.name {{ font-weight: 700 }}
.fact {{ fill: #4b5563 }}
.box {{ fill: #f8fafc; stroke: #334155; stroke-width: 1.4 }}
.wire {{ fill: none; stroke-width: 1.6 }}
"""


def svg_of(drawing: Drawing, title: str) -> str:
    """A document by itself. The fuller a box is of colour, the more of the time is spent in it."""
    width = max(drawing.width, len(title)) * CELL_WIDTH + 2 * MARGIN
    height = (drawing.height + 2) * CELL_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + FONT}" xml:space="preserve">{_text(title)}</text>',
        f'<g transform="translate({MARGIN} {MARGIN + 2 * CELL_HEIGHT:.0f})">',
        *(part for wire in drawing.wires for part in _wire(wire)),
        *(part for box in drawing.boxes for part in _box(box)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    """What XML cannot say is left out."""
    return escape("".join(letter for letter in text if letter >= " " and not "\ud800" <= letter <= "\udfff"))


def _x(column: float) -> float:
    return (column + 0.5) * CELL_WIDTH


def _y(row: float) -> float:
    return (row + 0.5) * CELL_HEIGHT


def _wire(wire: Wire) -> Iterator[str]:
    """A line begins at the edge of the box that is above its first cell, and ends at that of one below its heads."""
    colour = COLOURS[wire.tensor % len(COLOURS)]
    moves = []
    for number, (left, top, right, bottom) in enumerate(wire.segments):
        begin = _y(top) - (CELL_HEIGHT / 2 if number == 0 else 0)
        end = _y(bottom) + (CELL_HEIGHT / 2 if left == right and not _goes_on(wire, left, bottom) else 0)
        moves.append(f"M{_x(left):.1f} {begin:.1f}L{_x(right):.1f} {end:.1f}")
    yield f'<path class="wire" stroke="{colour}" d="{"".join(moves)}"/>'
    for column, row in wire.heads:
        x, tip = _x(column), (row + 1) * CELL_HEIGHT
        yield f'<path fill="{colour}" d="M{x:.1f} {tip:.1f}l-4.5 -9h9z"/>'
    for i, line in enumerate(wire.label):
        style = "name" if i == 0 else "fact"
        x, y = _x(wire.label_at[0] - 0.8), _y(wire.label_at[1] + i) + FONT / 3
        yield f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" xml:space="preserve">{_text(line)}</text>'


def _goes_on(wire: Wire, column: int, row: int) -> bool:
    """Whether a row of the line begins, ends or passes there."""
    return any(
        top == bottom == row and left <= column <= right and left != right for left, top, right, bottom in wire.segments
    )


def _box(box: Box) -> Iterator[str]:
    left, top = box.x * CELL_WIDTH, box.y * CELL_HEIGHT
    width, height = box.width * CELL_WIDTH, box.height * CELL_HEIGHT
    if box.node.boxed:
        place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"'
        yield f'<rect class="box" {place}/>'
        if box.node.weight:
            share = f'fill="#f97316" fill-opacity="{0.05 + 0.45 * box.node.weight:.2f}"'
            yield f"<rect {place} {share}><title>{box.node.weight:.0%} of the time</title></rect>"
    middle, first = left + width / 2, box.y + box.node.boxed
    for i, line in enumerate(box.node.lines):
        style, y = "name" if i == 0 else "fact", _y(first + i) + FONT / 3
        yield (
            f'<text class="{style}" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle" '
            f'xml:space="preserve">{_text(line)}</text>'
        )
