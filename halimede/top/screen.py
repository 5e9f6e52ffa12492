"""The view as a table for a terminal, by the library `rich` of the extra `halimede[top]`. Pure."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from halimede.top.rates import ModelRates
from halimede.top.sample import Snapshot

_BUSY, _WARN = 0.5, 0.9
_Cell = Callable[[ModelRates], Text]


def _number(value: float | None, digits: int = 1, style: str = "") -> Text:
    if value is None:
        return Text("-", "dim")
    if value == 0:  # dim, so that the models at work stand out
        return Text("0", "dim")
    return Text(f"{value:,.{digits}f}" if value < 1000 else f"{value:,.0f}", style)


def _whole(value: int | None, style: str = "") -> Text:
    return Text("-", "dim") if value is None else Text(f"{value:,}", style if value else "dim")


def _milliseconds(value: float | None) -> Text:
    return _number(value, 2 if value is not None and value < 10 else 1)


def _share(value: float | None) -> Text:
    if value is None:
        return Text("-", "dim")
    style = "red" if value > _WARN else "yellow" if value > _BUSY else "green" if value > 0 else "dim"
    return Text(f"{value:.0%}", style)


def _instances(model: ModelRates) -> Text:
    if model.instances is None:
        return Text("-", "dim")
    # Triton's metrics do not say how many instances are at work.
    if model.instances_busy is None:
        return Text(f"{model.instances}")
    return Text(f"{model.instances_busy}/{model.instances}", "" if model.instances_busy else "dim")


_COLUMNS: tuple[tuple[str, _Cell], ...] = (
    ("req/s", lambda model: _number(model.requests, style="bold")),
    ("fail/s", lambda model: _number(model.failures, style="bold red")),
    ("inf/s", lambda model: _number(model.inferences)),
    ("batch", lambda model: _number(model.batch)),
    ("ms", lambda model: _milliseconds(model.latency_ms)),
    ("p99", lambda model: _milliseconds(model.p99_ms)),
    ("queue", lambda model: _milliseconds(model.queue_ms)),
    ("compute", lambda model: _milliseconds(model.compute_ms)),
    ("waiting", lambda model: _whole(model.pending, "yellow")),
    ("oldest s", lambda model: _number(model.oldest_seconds, 2)),
    ("busy", _instances),
    ("use", lambda model: _share(model.utilization)),
    ("cache", lambda model: _share(model.cache_hits)),
)


_FIRST = ("req/s", "ms", "waiting", "fail/s", "busy", "batch", "use", "queue", "compute", "inf/s", "p99", "oldest s")
"""The order in which columns are chosen for a narrow terminal. Columns that are not here come last."""
_NAMES, _EACH = 24, 10
"""Characters for the names of the models, and for each column."""

UNLIMITED = 10_000
"""The width of a file or a pipe, in which a table is as wide as it needs to be."""


def _fitting(width: int) -> list[tuple[str, _Cell]]:
    """The columns that fit, in the order of the table."""
    rank = {title: place for place, title in enumerate(_FIRST)}
    chosen = sorted(_COLUMNS, key=lambda column: rank.get(column[0], len(rank)))[: max(1, (width - _NAMES) // _EACH)]
    return [column for column in _COLUMNS if column in chosen]


def screen(url: str, snapshot: Snapshot, models: Sequence[ModelRates], width: int, trouble: str = "") -> RenderableType:
    """The view for `width` characters: the terminal's, or `UNLIMITED`. `trouble` says why there is none newer."""
    columns = _fitting(width)
    table = Table(box=box.SIMPLE_HEAD, expand=width < UNLIMITED, pad_edge=False)
    table.add_column("model", ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for model in models:
        table.add_row(Text(f"{model.name}:{model.version}"), *(cell(model) for _, cell in columns))
    parts: list[RenderableType] = [_head(url, snapshot, models), table]
    if not snapshot.has_metrics:
        parts.append(
            Text("no metrics found, so no queues and no instances at work; --metrics-url=HOST:PORT says where", "dim")
        )
    if trouble:
        parts.append(Text(trouble, "bold red"))
    return Group(*parts)


def _head(url: str, snapshot: Snapshot, models: Sequence[ModelRates]) -> Text:
    head = Text.assemble((snapshot.server, "bold"), f" {snapshot.version}  {url}  ")
    head.append(f"{len(models)} model{'' if len(models) == 1 else 's'}  ")
    head.append_text(_number(sum(model.requests for model in models), style="bold")).append(" req/s  ")
    machine = snapshot.machine
    if machine.cpu is not None:
        head.append("cpu ").append_text(_share(machine.cpu)).append("  ")
    if machine.memory_used is not None and machine.memory_total:
        head.append(f"memory {machine.memory_used / 2**30:.1f}/{machine.memory_total / 2**30:.1f} GiB  ")
    # The UUID of a GPU is too long for the line.
    for number, (_, used) in enumerate(machine.gpus):
        head.append(f"gpu{number} ").append_text(_share(used)).append("  ")
    # A second line would push the table down, and each view would jump.
    head.no_wrap = True
    return head
