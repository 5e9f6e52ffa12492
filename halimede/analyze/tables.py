"""Results as tables: the CSV files of Model Analyzer, and lines for a terminal (X43). Pure."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from halimede.analyze.changes import changed, changes_to
from halimede.analyze.checkpoint import Record
from halimede.analyze.measurements import Measurement
from halimede.analyze.space import Config, batch_limit, delay_of, members_of
from halimede.analyze.tags import PARAMETERS, TAGS, known
from halimede.errors import Invalid


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement with what is known of its model."""

    record: Record
    found: Measurement

    @property
    def name(self) -> str:
        return self.record.names.of(self.found.candidate.setup)

    @property
    def config(self) -> Config:
        return config_of(self.record, self.found)


def config_of(record: Record, found: Measurement, model: str = "") -> Config:
    """The configuration of the model, or of one that it calls, in a measurement."""
    model = model or record.names.model
    return changed(record.configs[model], changes_to(found.candidate.setup, model))


def models_of(record: Record) -> list[str]:
    """The model, or the members of an ensemble, which are what is tuned."""
    return members_of(record.configs[record.names.model]) or [record.names.model]


def instances_text(config: Config) -> str:
    """`2:CPU`: the instances of each kind; `1:AUTO` if the server decides."""
    parts = [
        f"{max(1, int(group.get('count', 1)))}:{str(group.get('kind', 'KIND_AUTO')).removeprefix('KIND_')}"
        for group in config.get("instance_group", ())
    ]
    return "/".join(parts) or "1:AUTO"


def batching_text(config: Config) -> str:
    """`32`, `32 after 200 us`, or `no batching`."""
    limit = batch_limit(config)
    if not limit:
        return "no batching"
    if delay := delay_of(config):
        return f"{limit} after {delay} us"
    return str(limit) if "dynamic_batching" in config else f"{limit} without dynamic batching"


def _each(row: Row, text: Callable[[Config], str]) -> str:
    return ", ".join(text(config_of(row.record, row.found, model)) for model in models_of(row.record))


def _load(row: Row, is_rate: bool) -> str:
    load = row.found.candidate.load
    return f"{load.value:g}" if load.is_rate == is_rate else "0"


_CELLS: Mapping[str, Callable[[Row], str]] = {
    "model_name": lambda row: row.record.names.model,
    "gpu_uuid": lambda row: "all",
    "batch_size": lambda row: str(row.found.candidate.load.batch_size),
    "concurrency": lambda row: _load(row, False),
    "request_rate": lambda row: _load(row, True),
    "model_config_path": lambda row: row.name,
    "instance_group": lambda row: _each(row, instances_text),
    "max_batch_size": lambda row: _each(row, lambda config: str(batch_limit(config))),
    "dynamic_batch_sizes": lambda row: _each(row, lambda config: str(batch_limit(config))),
    "satisfies_constraints": lambda row: "Yes" if row.record.goal.satisfies(row.found) else "No",
}


def check_fields(fields: Sequence[str]) -> None:
    """Raises Invalid for columns that do not exist."""
    for each in fields:
        if each not in PARAMETERS and known(each) is None:
            raise Invalid(f"unknown column '{each}': there are {', '.join([*PARAMETERS, *TAGS])}")


def title_of(name: str) -> str:
    return PARAMETERS[name] if name in PARAMETERS else TAGS[known(name) or name].title


def cell(row: Row, name: str) -> str:
    if name in _CELLS:
        return _CELLS[name](row)
    tag, figures = known(name) or name, row.found.figures
    # Models that are measured together have figures of their own.
    own = [figures[f"{model}:{tag}"] for model in models_of(row.record) if f"{model}:{tag}" in figures]
    return ", ".join(map(_number, own or [figures[tag]])) if tag in figures else ""


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.1f}"


def csv_text(rows: Sequence[Row], fields: Sequence[str]) -> str:
    """A table with a heading; empty if there are no rows (X43)."""
    if not rows:
        return ""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(map(title_of, fields))
    for row in rows:
        writer.writerow([cell(row, name) for name in fields])
    return sink.getvalue()


# ---- on a terminal

_HEAD = ("configuration", "instances", "max batch", "clients", "inferences/s", "p99 ms", "")


def heading(width: int, is_rate: bool) -> str:
    return _line(width, tuple("requests/s" if is_rate and name == "clients" else name for name in _HEAD))


def progress(width: int, row: Row, note: str) -> str:
    """A measurement as a line under `heading`."""
    found = row.found
    return _line(
        width,
        (
            row.name,
            _each(row, instances_text),
            _each(row, batching_text),
            f"{found.candidate.load.value:g}",
            f"{found.throughput:,.1f}",
            f"{found.figures['perf_latency_p99']:.3f}",
            note,
        ),
    )


def _line(width: int, cells: Sequence[str]) -> str:
    name, instances, batch, load, rate, latency, note = cells
    return f"{name:<{width}}  {instances:>9}  {batch:>12}  {load:>10}  {rate:>12}  {latency:>9}  {note}".rstrip()
