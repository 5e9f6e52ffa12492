"""The limits of what a client may send, collected from the sources for docs/limits.md.

A limit is a constant of a module or class, declared where it is used. Its docstring says what is limited, and after the
word `Beyond:` what happens beyond it:

    MAX_TENSORS: Final = 10_000
    \"\"\"Inputs of a request. Beyond: INVALID_ARGUMENT.\"\"\"

A limit that a flag sets is a line of `FLAGS` below. `python -m tools.limits` prints the page, and `--write` writes it.
Reads source files, and imports only the table of flags.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halimede.options.flags import GROUPS
from tools.rooms import modules_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "limits.md"

FLAGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "http-max-input-size": (
            "Bytes of the JSON of an HTTP request, of an input in it, of raw input, and of a decompressed body (H17).",
            "400.",
        ),
        "grpc-max-response-pool-size": (
            "Responses of a decoupled model that wait for their reader (G32).",
            "The model waits.",
        ),
        "http-max-header-bytes": ("Bytes of the head of an HTTP/1 request, and of its request line.", "431."),
        "max-buffered-bytes": (
            "Bytes of requests and unread answers of all clients. By default half of the memory.",
            "Clients wait, then get 503 or UNAVAILABLE.",
        ),
        "max-connection-bytes": (
            "Bytes of requests and unread answers of one connection. By default half of `--max-buffered-bytes`.",
            "The connection waits, then gets 503 or UNAVAILABLE. A larger request: 413 or RESOURCE_EXHAUSTED.",
        ),
        "head-timeout-secs": ("Seconds for the whole head of a request.", "The connection is closed."),
        "body-timeout-secs": ("Seconds without a byte of a request that has begun.", "The connection is closed."),
        "idle-timeout-secs": ("Seconds without a request on an HTTP connection.", "The connection is closed."),
        "unread-timeout-secs": (
            "Seconds in which a client reads nothing of its answer.",
            "The client is disconnected.",
        ),
        "max-instances": (
            "Instances of one configuration, over all versions, groups and GPUs.",
            "The load fails: 400.",
        ),
        "max-warmup-samples": (
            "Warm-up samples of one configuration, and requests in the batch of a sample.",
            "The load fails: 400.",
        ),
    }
)
"""Limits that are flags: by the name of the flag, what is limited, and what happens beyond."""

_HEAD = """# Limits

What a client may send, and what the server does beyond it. The limits are far above what clients of the protocol send.
`400` is the status over HTTP. A name in capitals is the status of a gRPC call. A limit without a flag is a constant of
the module. `tools/limits.py` makes this page from the docstrings of the constants.

"""


@dataclass(frozen=True, slots=True, order=True)
class Limit:
    """One limit. `module` is empty for a flag."""

    module: str
    name: str
    value: str
    what: str
    beyond: str


def flag_limits() -> Iterator[Limit]:
    flags = {flag.name: flag for group in GROUPS.values() for flag in group}
    for name, (what, beyond) in FLAGS.items():
        default = flags[name].default
        value = "" if default is None else _number(int(default), what.split()[0])
        yield Limit("", f"--{name}", value, what, beyond)


def constant_limits(package: Path) -> Iterator[Limit]:
    """Yields the limits that the modules of a package declare. Raises ValueError for a value that is not a number."""
    for module, path in modules_of(package).items():
        source = path.read_text()
        # Parsing takes most of the time, and few modules have a limit.
        if "Beyond:" in source:
            yield from _declared(f"{package.name}.{module}", ast.parse(source).body)


def _declared(module: str, body: Sequence[ast.stmt]) -> Iterator[Limit]:
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.ClassDef):
            yield from _declared(module, statement.body)
            continue
        text = _docstring(following)
        if text is None or "Beyond:" not in text or not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        name = ast.unparse(target)
        what, _, beyond = re.sub(r"\s+", " ", text).partition("Beyond:")
        yield Limit(module, name, _number(_evaluated(statement.value, name), name), what.strip(), beyond.strip())


def _docstring(statement: ast.stmt | None) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


_ARITHMETIC = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)


def _evaluated(value: ast.expr | None, name: str) -> float:
    if value is None or not all(isinstance(node, _ARITHMETIC) for node in ast.walk(value)):
        raise ValueError(f"the limit {name} is not a number")
    number: Any = eval(compile(ast.Expression(value), name, "eval"), {})
    return float(number) if isinstance(number, float) else int(number)


def _number(value: float, name: str) -> str:
    """Returns a value as people write it: bytes in the largest unit that divides them."""
    if name.lower().endswith("bytes") and isinstance(value, int):
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:,}"


def page(package: Path = ROOT / "halimede") -> str:
    """Returns the text of docs/limits.md."""
    constants: dict[str, list[Limit]] = {}
    for limit in sorted(constant_limits(package)):
        constants.setdefault(limit.module, []).append(limit)
    parts = [_HEAD, "## Flags\n\n", _table(list(flag_limits()))]
    for module, limits in constants.items():
        parts += (f"\n## `{module}`\n\n", _table(limits))
    return "".join(parts)


def _table(limits: Sequence[Limit]) -> str:
    rows = (f"| `{limit.name}` | {limit.value} | {limit.what} | {limit.beyond} |\n" for limit in limits)
    return "".join(("| limit | value | of | beyond |\n|---|---:|---|---|\n", *rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/limits.md")
    text = page()
    if parser.parse_args(arguments).write:
        PAGE.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
