"""The tables that the server prints when it has started, drawn as Triton draws them (contract L6, L7). Pure."""

from collections.abc import Iterable, Sequence

from halimede.options import ServerOptions


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A frame of `+`, `-` and `|` around left-aligned columns; a cell with several lines takes as many.

    No line end after the last line. Every row is as long as the header.
    """
    cells = [[cell.splitlines() or [""] for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(header))]
    rule = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    first, *others = [_row(row, widths) for row in cells]
    return "\n".join([rule, *first, rule, *(line for lines in others for line in lines), rule])


def _row(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in row)
    padded = [[*lines, *[""] * (height - len(lines))] for lines in row]
    return [
        "|" + "".join(f" {lines[i]:{width}} |" for lines, width in zip(padded, widths, strict=True))
        for i in range(height)
    ]


def model_table(models: Iterable[tuple[str, str, str]]) -> str:
    """Name, version and status of each model version: `READY`, `UNAVAILABLE: <reason>`, or version `-` and
    `Not loaded: No model version was found` (L6)."""
    return table(("Model", "Version", "Status"), models)


def options_table(options: ServerOptions, version: str, extensions: Sequence[str]) -> str:
    """The options that the server runs with, under Triton's names (L7).

    The limiter has no option that could turn it on yet.
    """
    paths = [(f"model_repository_path[{i}]", path) for i, path in enumerate(options.model_repositories)]
    rows = [
        ("server_id", options.server_id),
        ("server_version", version),
        ("server_extensions", " ".join(extensions)),
        *paths,
        ("model_control_mode", f"MODE_{options.model_control_mode.upper()}"),
        ("strict_model_config", str(int(not options.auto_complete_config))),
        ("model_config_name", options.model_config_name),
        ("rate_limit", "OFF"),
        ("strict_readiness", str(int(options.strict_readiness))),
        ("exit_timeout", str(options.exit_timeout_secs)),
        ("cache_enabled", str(int(bool(options.cache_config)))),
    ]
    return table(("Option", "Value"), rows)
