"""Tables, line for line as the real server draws them."""

import re

from halimede.cli.tables import model_table, options_table, table
from halimede.options import Endpoint, ServerOptions


def test_table_without_rows_keeps_both_frames() -> None:
    assert table(("Repository Agent", "Path"), []).splitlines() == [
        "+------------------+------+",
        "| Repository Agent | Path |",
        "+------------------+------+",
        "+------------------+------+",
    ]


def test_model_table_aligns_columns_and_spreads_long_reasons_over_lines() -> None:
    reason = 'UNAVAILABLE: Internal: ValueError: no\n tab "q" \n\nAt:\n  bad/1/model.py(3): initialize\n'
    rows = [("bad", "1", reason), ("floor", "12", "READY"), ("nover", "-", "Not loaded: No model version was found")]
    assert model_table(rows).splitlines() == [
        "+-------+---------+----------------------------------------+",
        "| Model | Version | Status                                 |",
        "+-------+---------+----------------------------------------+",
        "| bad   | 1       | UNAVAILABLE: Internal: ValueError: no  |",
        '|       |         |  tab "q"                               |',
        "|       |         |                                        |",
        "|       |         | At:                                    |",
        "|       |         |   bad/1/model.py(3): initialize        |",
        "| floor | 12      | READY                                  |",
        "| nover | -       | Not loaded: No model version was found |",
        "+-------+---------+----------------------------------------+",
    ]


def test_cell_cannot_leave_its_place() -> None:
    lines = model_table([("a\x1b[2J\x9b\u202e", "1", "one\r\ntwo\x85three")]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert all(line.isprintable() for line in lines)
    assert [line.split() for line in lines[3:5]] == [
        ["|", "a\\u001B[2J\\u009B\\u202E", "|", "1", "|", "one\\u000D", "|"],
        ["|", "|", "|", "two\\u0085three", "|"],
    ]


def test_options_table_says_whether_there_is_a_cache() -> None:
    text = options_table(ServerOptions(cache_config={"local": {"size": "4096"}}), "1.2", [])
    assert re.search(r"^\| cache_enabled +\| 1 +\|$", text, re.MULTILINE)


def test_options_table_shows_all_options() -> None:
    options = ServerOptions(
        model_repositories=("a", "b"), auto_complete_config=False, exit_timeout_secs=5, http=Endpoint(1)
    )
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in options_table(options, "1.2", ["x", "y"]).splitlines()
        if line.startswith("|")
    ]
    assert cells == [
        ["Option", "Value"],
        ["server_id", "triton"],
        ["server_version", "1.2"],
        ["server_extensions", "x y"],
        ["model_repository_path[0]", "a"],
        ["model_repository_path[1]", "b"],
        ["model_control_mode", "MODE_NONE"],
        ["strict_model_config", "1"],
        ["model_config_name", ""],
        ["rate_limit", "OFF"],
        ["strict_readiness", "1"],
        ["exit_timeout", "5"],
        ["cache_enabled", "0"],
    ]
