"""The tables in the log of the start, drawn as Triton draws them (L6, L7). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from json import dumps

from halimede.cli.log_lines import VISIBLE
from halimede.options import ServerOptions


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A frame of `+`, `-` and `|` around left-aligned columns. A cell may have several lines.

    Every row must be as long as the header. The text does not end with a line end. Characters that a terminal would
    obey are escaped.
    """
    cells = [[_lines(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(header))]
    rule = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    first, *others = [_row(row, widths) for row in cells]
    return "\n".join([rule, *first, rule, *(line for lines in others for line in lines), rule])


def _lines(cell: str) -> list[str]:
    return [line.translate(VISIBLE) for line in cell.removesuffix("\n").split("\n")]


def _row(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in row)
    padded = [[*lines, *[""] * (height - len(lines))] for lines in row]
    return [
        "|" + "".join(f" {lines[i]:{width}} |" for lines, width in zip(padded, widths, strict=True))
        for i in range(height)
    ]


def agent_table(names: Iterable[str]) -> str:
    """The repository agents of the models. All of them are built in (L6)."""
    return table(("Repository Agent", "Path"), [(name, "built in") for name in names])


def backend_table(backends: Iterable[tuple[str, str, Mapping[str, str]]], options: ServerOptions) -> str:
    """Name, place and settings of each backend; the settings are JSON (L6)."""
    # Triton adds these two to the settings of each backend.
    common = {"auto-complete-config": str(options.auto_complete_config).lower(), "default-max-batch-size": "4"}
    rows = [
        (name, place, dumps({"cmdline": {**common, **settings}}, separators=(",", ":")))
        for name, place, settings in backends
    ]
    return table(("Backend", "Path", "Config"), rows)


def model_table(models: Iterable[tuple[str, str, str]]) -> str:
    """Name, version and status of each model version: `READY`, `UNAVAILABLE: <reason>`, or version `-` and
    `Not loaded: No model version was found` (L6)."""
    return table(("Model", "Version", "Status"), models)


def options_table(options: ServerOptions, version: str, extensions: Sequence[str]) -> str:
    """The options of the server, under Triton's names and in its order (L7). Those of memory pools are left out, since
    there are no pools."""
    paths = [(f"model_repository_path[{i}]", path) for i, path in enumerate(options.model_repositories)]
    rows = [
        ("server_id", options.server_id),
        ("server_version", version),
        ("server_extensions", " ".join(extensions)),
        *paths,
        ("model_control_mode", f"MODE_{options.model_control_mode.upper()}"),
        *[(f"startup_models_{i}", name) for i, name in enumerate(options.load_models)],
        ("strict_model_config", str(int(not options.auto_complete_config))),
        ("model_config_name", options.model_config_name),
        ("rate_limit", "EXEC_COUNT" if options.rate_limit else "OFF"),
        ("strict_readiness", str(int(options.strict_readiness))),
        ("exit_timeout", str(options.exit_timeout_secs)),
        ("cache_enabled", str(int(bool(options.cache_config)))),
    ]
    return table(("Option", "Value"), rows)
