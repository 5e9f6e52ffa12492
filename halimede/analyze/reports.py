"""Reports: a summary of each model, details of chosen configurations (X44). Writes files.

Needs the libraries of the extra `halimede[analyze]`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halimede.analyze import pages, pdf, plots
from halimede.analyze.answer import Answer, frontier, lines, setup_texts
from halimede.analyze.checkpoint import Checkpoints, Record
from halimede.analyze.measurements import SERVER_TAGS, Measurement
from halimede.analyze.pages import Report, Section
from halimede.analyze.settings import Settings
from halimede.analyze.space import Load, Setup
from halimede.analyze.tables import Row, cell, title_of
from halimede.errors import Invalid

COLUMNS = (
    "model_config_path",
    "instance_group",
    "max_batch_size",
    "concurrency",
    "perf_throughput",
    "perf_latency_p99",
    "cpu_used_ram",
    "satisfies_constraints",
)
DETAILS = ("concurrency", "batch_size", "perf_throughput", "perf_latency_avg", "perf_latency_p99", *SERVER_TAGS)


def table_of(rows: Sequence[Row], columns: Sequence[str]) -> list[list[str]]:
    """A table with a heading."""
    is_rate = any(row.found.candidate.load.is_rate for row in rows)
    names = ["request_rate" if name == "concurrency" and is_rate else name for name in columns]
    return [[title_of(name) for name in names], *([cell(row, name) for name in names] for row in rows)]


def _best_rows(record: Record, count: int) -> list[Row]:
    settled = record.settled()
    best = record.goal.top(settled, count)
    default = record.goal.best([each for each in settled if not each.candidate.setup])
    if default is not None and all(each.candidate.setup for each in best):
        best.append(default)
    return [Row(record, each) for each in best]


# ---- summaries


def write_summaries(settings: Settings, answers: Sequence[Answer]) -> list[Path]:
    """Writes plots and summaries of the models, and details of the best configurations. Returns the paths of the
    reports. Raises OSError and Invalid."""
    root, count = Path(settings.text("export_path")), settings.number("num_configs_per_model")
    written = []
    for answer in answers:
        record = answer.record
        folder = root / "plots" / "simple" / record.names.model
        best = [row.found.candidate.setup for row in _best_rows(record, count)]
        for name, wanted in _plots(settings).items():
            figure = plots.user_figure(record, wanted, best)
            if figure is not None:
                plots.png(figure, folder / f"{name}.png")
        place = root / "reports" / "summaries" / record.names.model
        written += _write(settings, summary(answer, count, folder), place, "result_summary")
        for setup in best if not settings.is_on("skip_detailed_reports") else ():
            written += write_details(settings, record, setup)
    if settings.number("num_top_model_configs") and answers:
        written += _write(
            settings,
            across(answers, settings.number("num_top_model_configs")),
            root / "reports" / "summaries" / "Best Configs Across All Models",
            "result_summary",
        )
    return written


def _plots(settings: Settings) -> dict[str, Any]:
    given = settings.values["plots"]
    if given is None:
        return dict(plots.DEFAULT_PLOTS)
    found: dict[str, Any] = {}
    for each in given if isinstance(given, list) else [given]:
        found.update(each)
    return found


def summary(answer: Answer, count: int, folder: Path) -> Report:
    """What was found about a model. Draws its frontier into the folder."""
    record = answer.record
    figure = plots.frontier_figure(record)
    image = plots.png(figure, folder / "frontier.png")
    said = [line.strip() for line in lines(answer)]
    front = [Row(record, each) for each in frontier(record.measurements)]
    sections = [
        Section("The answer", tuple(said)),
        Section("The best configurations", table=table_of(_best_rows(record, count), COLUMNS)),
        Section(
            "The frontier",
            ("No other measurement is better than one of these in both throughput and latency.",),
            table_of(front, COLUMNS),
            plots.svg(figure),
            str(image),
        ),
    ]
    for model, text in setup_texts(record, answer.best, {}).items():
        sections.append(Section(f"config.pbtxt of {model}", code=text))
    measured = len({each.candidate.setup for each in record.measurements})
    how = f"{len(record.measurements)} measurements of {measured} configurations, {record.mode} search"
    sections.append(Section("How it was found", (f"{how}, over {record.protocol}.", _goal(record))))
    return Report(f"Result summary: {record.names.model}", tuple(sections))


def _goal(record: Record) -> str:
    objectives = ", ".join(f"{tag} (weight {weight:g})" for tag, weight in record.goal.objectives.items())
    bounds = [
        f"{tag} {sign} {value:g}"
        for tag, limits in record.goal.constraints.items()
        for sign, value in ((">=", limits.least), ("<=", limits.most))
        if abs(value) != float("inf")
    ]
    return f"Objectives: {objectives}. Constraints: {', '.join(bounds) or 'none'}."


def across(answers: Sequence[Answer], count: int) -> Report:
    """The best configurations of all models together, by how much they gain (X44)."""
    gains = sorted(answers, key=lambda each: -_gain(each))
    rows = [row for answer in gains for row in _best_rows(answer.record, 1)][:count]
    table = table_of(rows, COLUMNS)
    names = [row.record.names.model for row in rows]
    table = [["Model", *table[0]], *([name, *cells] for name, cells in zip(names, table[1:], strict=True))]
    return Report("Best Configs Across All Models", (Section("The best configurations", table=table),))


def _gain(answer: Answer) -> float:
    return answer.record.goal.gain(answer.best, answer.default) if answer.default is not None else 0.0


# ---- details


def report(settings: Settings) -> int:
    """`halimede analyze report`: details of measured configurations. Returns the exit status. Raises Invalid."""
    checkpoints = Checkpoints(Path(settings.text("checkpoint_directory")))
    if not checkpoints.records:
        raise Invalid(f"there is no checkpoint in '{settings.text('checkpoint_directory')}': profile first")
    wanted = settings.words("report_model_configs")
    known = {name: (record, setup) for record in checkpoints.records.values() for name, setup in record.names.all()}
    if not wanted:
        raise Invalid(f"no configuration is named. There are {', '.join(known)}")
    for name in wanted:
        if name not in known:
            raise Invalid(f"the checkpoint has no configuration '{name}'. There are {', '.join(known)}")
    for name in wanted:
        try:
            for path in write_details(settings, *known[name]):
                print(f"Written: {path}")
        except OSError as error:
            raise Invalid(f"cannot write the report of '{name}': {error.strerror}") from None
    return 0


def write_details(settings: Settings, record: Record, setup: Setup) -> list[Path]:
    """Writes the detailed report of a configuration, and its plots. Raises OSError and Invalid."""
    root, name = Path(settings.text("export_path")), record.names.of(setup)
    folder = root / "plots" / "detailed" / name
    figure = plots.breakdown_figure(record, setup)
    image = plots.png(figure, folder / "latency_breakdown.png")
    own = sorted((each for each in record.measurements if each.candidate.setup == setup), key=_by_load)
    sections = [
        Section("All loads", table=table_of([Row(record, each) for each in own], DETAILS)),
        Section("Where the time of a request goes", svg=plots.svg(figure), png=str(image)),
    ]
    for plot, wanted in _plots(settings).items():
        drawn = plots.user_figure(record, wanted, [setup])
        if drawn is not None:
            path = plots.png(drawn, folder / f"{plot}.png")
            sections.append(Section(str(wanted.get("title", plot)), svg=plots.svg(drawn), png=str(path)))
    if own:
        for model, text in setup_texts(record, own[0], {}).items():
            sections.append(Section(f"config.pbtxt of {model}", code=text))
    detailed = Report(f"Detailed report: {name}", tuple(sections))
    return _write(settings, detailed, root / "reports" / "detailed" / name, "detailed_report")


def _by_load(found: Measurement) -> Load:
    return found.candidate.load


def _write(settings: Settings, content: Report, folder: Path, name: str) -> list[Path]:
    """Writes a report in the forms that the user wants."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    formats = settings.words("output_formats")
    if "html" in formats:
        written.append(folder / f"{name}.html")
        written[-1].write_text(pages.html(content), encoding="utf-8")
    if "pdf" in formats:
        written.append(folder / f"{name}.pdf")
        pdf.write(content, written[-1])
    return written
