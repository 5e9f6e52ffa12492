"""A pipeline or another graph as SVG: grandalf places the nodes in layers, this module draws them. Pure; any thread."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from grandalf.graphs import Edge, Graph, Vertex, graph_core
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import route_with_lines

from halimede.devtools.graph_pipeline import Pipeline
from halimede.devtools.graph_text import opacity, share_of, step_lines, tensor_lines, title_of

Point = tuple[float, float]

FONT = 14
LETTER = 8.5
"""Width of a character of the font, in pixels."""
LINE = 19.0
PADDING = 12.0
MARGIN = 24.0
GAP = 28.0
"""Between two layers, and between two nodes of a layer."""
_STYLE = f"""
text {{ font: {FONT}px ui-monospace, Menlo, Consolas, monospace; fill: #4b5563; text-anchor: middle }}
.name {{ font-weight: 700; fill: #1f2937 }}
.title {{ font-weight: 700; fill: #1f2937; text-anchor: start }}
.box {{ fill: #f8fafc; stroke: #334155; stroke-width: 1.4 }}
.edge {{ fill: none; stroke: #64748b; stroke-width: 1.6; marker-end: url(#arrow) }}
"""
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
    'markerUnits="userSpaceOnUse"><path fill="#64748b" d="M0 0l8 4l-8 4z"/></marker>'
)


@dataclass(slots=True, eq=False)
class Node:
    """A step or a tensor. grandalf reads `w` and `h` and sets `xy`, its middle. `share` is the part of the time that a
    step takes; None for a tensor, which has no box."""

    lines: Sequence[str]
    share: float | None = None
    xy: Point = (0.0, 0.0)
    w: float = 0.0
    h: float = 0.0

    def __post_init__(self) -> None:
        padding = PADDING if self.share is not None else 2.0
        self.w = max((len(line) for line in self.lines), default=0) * LETTER + 2 * padding
        self.h = len(self.lines) * LINE + 2 * padding


@dataclass(slots=True, eq=False)
class _Path:
    """The way of an edge, from the middle of one node to that of another."""

    points: list[Point] = field(default_factory=list)

    def setpath(self, points: list[Point]) -> None:
        """Called by grandalf."""
        self.points = points


def svg_of(pipeline: Pipeline) -> str:
    """A whole document. The more of the time a step takes, the fuller its colour."""
    steps = [Node(step_lines(step), share_of(step, pipeline)) for step in pipeline.steps]
    # Tensors that no step uses would be nodes without lines.
    used = {*pipeline.given, *pipeline.results}
    used.update(number for step in pipeline.steps for _, number in (*step.reads, *step.writes))
    tensors = {number: Node(tensor_lines(pipeline.tensors[number])) for number in sorted(used)}
    pairs: list[tuple[Node, Node]] = []
    for node, step in zip(steps, pipeline.steps, strict=True):
        pairs += [(tensors[number], node) for _, number in step.reads]
        pairs += [(node, tensors[number]) for _, number in step.writes]
    return picture(title_of(pipeline), [*steps, *tensors.values()], pairs)


def picture(title: str, nodes: Sequence[Node], pairs: Iterable[tuple[Node, Node]]) -> str:
    """A whole document with a line for each pair of nodes. Gives the nodes their places."""
    edges = _laid_out(nodes, pairs)
    left = min((node.xy[0] - node.w / 2 for node in nodes), default=0.0)
    top = min((node.xy[1] - node.h / 2 for node in nodes), default=0.0)
    right = max((node.xy[0] + node.w / 2 for node in nodes), default=0.0)
    bottom = max((node.xy[1] + node.h / 2 for node in nodes), default=0.0)
    # A line may pass outside of all nodes.
    for path in edges:
        left, right = min([left, *(x for x, _ in path)]), max([right, *(x for x, _ in path)])
    width = max(right - left, len(title) * LETTER) + 2 * MARGIN
    height = bottom - top + 2 * MARGIN + 2 * LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>{_STYLE}</style>",
        f"<defs>{_ARROW}</defs>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text class="title" x="{MARGIN:.0f}" y="{MARGIN + FONT:.0f}">{_text(title)}</text>',
        f'<g transform="translate({MARGIN - left:.1f} {MARGIN + 2 * LINE - top:.1f})">',
        *(f'<path class="edge" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in path)}"/>' for path in edges),
        *(part for node in nodes for part in _drawn(node)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts)


def _laid_out(nodes: Sequence[Node], pairs: Iterable[tuple[Node, Node]]) -> list[list[Point]]:
    """Gives all nodes their places, and returns the lines between them."""
    vertices = {node: Vertex(node) for node in nodes}
    edges = [Edge(vertices[one], vertices[other]) for one, other in dict.fromkeys(pairs)]
    for node, vertex in vertices.items():
        vertex.view = node
    for edge in edges:
        edge.view = _Path()
    offset = 0.0
    # grandalf lays out connected graphs only: the parts are placed beside each other.
    for component in Graph(list(vertices.values()), edges).C:
        offset = _place(component, offset)
    return [edge.view.points for edge in edges]


def _place(component: graph_core, left: float) -> float:
    """Gives the nodes of a connected part their places, right of `left`. Returns where the next part may begin."""
    layout = SugiyamaLayout(component)
    layout.xspace = layout.yspace = GAP
    layout.dw = layout.dh = 1.0  # an edge that passes a layer takes little room in it
    layout.route_edge = route_with_lines
    # Every node of a circle has an edge into it. The layout needs a node to begin with.
    roots = [vertex for vertex in component.sV if not vertex.e_in()] or [next(iter(component.sV))]
    layout.init_all(roots=roots)
    layout.draw()
    nodes = [vertex.view for vertex in component.sV]
    shift = left - min(node.xy[0] - node.w / 2 for node in nodes)
    for node in nodes:
        node.xy = node.xy[0] + shift, node.xy[1]
    for edge in component.sE:
        edge.view.points = [(x + shift, y) for x, y in edge.view.points]
    right: float = max(node.xy[0] + node.w / 2 for node in nodes)
    return right + GAP


def _drawn(node: Node) -> Iterator[str]:
    left, top = node.xy[0] - node.w / 2, node.xy[1] - node.h / 2
    if node.share is not None:
        place = f'x="{left:.1f}" y="{top:.1f}" width="{node.w:.1f}" height="{node.h:.1f}" rx="8"'
        yield f'<rect class="box" {place}/>'
        if node.share:
            fill = f'fill="#f97316" fill-opacity="{opacity(node.share):.2f}"'
            yield f"<rect {place} {fill}><title>{node.share:.0%} of the time</title></rect>"
    first = node.xy[1] - (len(node.lines) - 1) * LINE / 2 + FONT / 3
    for i, line in enumerate(node.lines):
        style = "" if i else ' class="name"'
        yield f'<text{style} x="{node.xy[0]:.1f}" y="{first + i * LINE:.1f}">{_text(line)}</text>'


def _text(text: str) -> str:
    """Without the characters that XML cannot have."""
    return escape("".join(letter for letter in text if letter >= " " and not "\ud800" <= letter <= "\udfff"))
