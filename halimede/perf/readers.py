"""Reads the values of single options, with the texts of perf_analyzer for wrong ones (X1 to X18). Pure,
except that it looks whether files exist.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.perf.options import HelpRequested, Parameter, Range, UsageError, VersionRequested

Store = dict[str, Any]
"""The values that were given, by field of Options, while the line is read."""


@dataclass(frozen=True, slots=True)
class Row:
    """An option: its names, what stands for its value (empty for a switch), its help, and what reads it."""

    names: str
    """Such as `--max-trials -r`, `--verbose-csv` or `-m`."""
    value: str
    help: str
    read: Callable[[Store, str, str], None]
    """Puts a value into the store. The second argument is `shown`."""

    @property
    def name(self) -> str:
        """The long name, without dashes; may be empty."""
        return next((each[2:] for each in self.names.split() if each.startswith("--")), "")

    @property
    def short(self) -> str:
        """The letter; may be empty."""
        return next((each[1:] for each in self.names.split() if not each.startswith("--")), "")

    @property
    def shown(self) -> str:
        """How messages name it: `--max-trials (-r)`."""
        first, *more = self.names.split()
        return " ".join((first, *(f"({each})" for each in more)))


def integer(text: str) -> int:
    """Reads as C++ does: an integer at the beginning. Raises ValueError."""
    found = re.match(r"\s*[+-]?\d+", text)
    if found is None:
        raise ValueError(text)
    return int(found[0])


def number(text: str) -> float:
    found = re.match(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+)", text)
    if found is None:
        raise ValueError(text)
    return float(found[0])


def failed(label: str, why: str) -> UsageError:
    return UsageError(f"Failed to parse {label}. {why}")


def switch(*names: str, **values: Any) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        store.update(dict.fromkeys(names, True), **values)

    return read


def text(name: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        store[name] = text

    return read


def at_least(name: str, least: int, why: str = "The value must be > 0.") -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        value = integer(text)
        if value < least:
            raise failed(shown, why)
        store[name] = value

    return read


def choice(name: str, choices: Sequence[str], why: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        if text not in choices:
            raise failed(shown, why.format(text))
        store[name] = text

    return read


def range_reader(name: str, number: Callable[[str], float]) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        parts = text.split(":")
        if len(parts) > 3:
            raise failed(shown, "The value does not match <start:end:step>.")
        values = [number(part) for part in parts]
        store[name] = Range(*values)

    return read


def periodic(store: Store, shown: str, text: str) -> None:
    parts = text.split(":")
    if len(parts) < 2:
        raise failed(shown, "Both <start> and <end> values must be provided.")
    if len(parts) > 3:
        raise failed(shown, "The value does not match <start:end:step>.")
    levels = Range(*map(integer, parts))
    if levels.step == 0:
        raise failed(shown, "The <step> value must be > 0.")
    if levels.start > levels.end:
        raise failed(shown, "The <start> must be <= <end>.")
    if (levels.end - levels.start) % levels.step:
        raise failed(shown, "The <step> value must be a factor of the range size (<end> - <start>).")
    store["periodic"] = levels


def shape(store: Store, shown: str, text: str) -> None:
    name, colon, dims = text.rpartition(":")
    if not colon:
        raise failed(shown, "There must be a colon after input name.")
    shape = tuple(map(integer, dims.split(",")))
    if min(shape) <= 0:
        raise failed(shown, "The dimensions of input tensor must be > 0.")
    store["shapes"] = {**store.get("shapes", {}), name: shape}


def input_data(store: Store, shown: str, text: str) -> None:
    if Path(text).exists():
        store["data_paths"] = (*store.get("data_paths", ()), text)
    elif text == "zero":
        store["zero_input"] = True
    elif text != "random":
        raise failed(
            shown,
            f"Unsupported type provided: '{text}'. The available options are 'zero', 'random', path to a directory, "
            "or a json file.",
        )


def append(name: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        store[name] = (*store.get(name, ()), text)

    return read


def header(store: Store, shown: str, text: str) -> None:
    name, colon, value = text.partition(":")
    if not colon:
        raise failed(shown, "The header must be given as 'Header:Value'.")
    store["headers"] = (*store.get("headers", ()), (name.strip(), value.strip()))


def parameter(store: Store, shown: str, text: str) -> None:
    parts = text.split(":")
    if len(parts) != 3:
        raise failed(shown, "The value does not match <name:value:type>.")
    name, value, kind = parts
    store["parameters"] = {**store.get("parameters", {}), name: Parameter(value, kind.lower())}


def ids(store: Store, shown: str, text: str) -> None:
    parts = text.split(":")
    if len(parts) > 2:
        raise failed(shown, "The value does not match <start:end>.")
    first, *rest = map(integer, parts)
    if first < 0 or (rest and rest[0] < 0):
        raise failed(shown, "The range values must be >= 0.")
    if rest and first > rest[0]:
        raise failed(shown, "The 'end' value must be greater than 'start' value.")
    store["sequence_id_start"] = first
    store["sequence_ids"] = rest[0] - first if rest else 0


def stability(store: Store, shown: str, text: str) -> None:
    value = number(text)
    if value < 0:
        raise failed(shown, "The value must be >= 0.0.")
    store["stability"] = value / 100


def sequence_length(store: Store, shown: str, text: str) -> None:
    value = integer(text)
    if value > 0:
        store["sequence_length"] = value
    else:
        store.setdefault("warnings", []).append(
            "WARNING: The sequence length must be > 0. Perf Analyzer will use default value if it is measuring on "
            "sequence model."
        )
    store["sequence_length_given"] = True


def protocol(store: Store, shown: str, text: str) -> None:
    protocol = text.lower()
    if protocol not in ("http", "grpc"):
        raise failed(f"{shown} (protocol)", "The value should be either HTTP or gRPC.")
    store["protocol"] = protocol


def batch(store: Store, shown: str, text: str) -> None:
    at_least("batch_size", 1)(store, f"{shown} (batch size)", text)
    store["batch_size_given"] = True


def metrics_interval(store: Store, shown: str, text: str) -> None:
    at_least("metrics_interval", 1, "The value must be > 0 msecs.")(store, shown, text)
    store["metrics_interval_given"] = True


def existing(name: str, why: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        if not Path(text).is_file():
            raise failed(shown, why)
        tls_or_plain(store, name, text)

    return read


def tls_or_plain(store: Store, name: str, value: Any) -> None:
    """A name with `tls.` before it is a field of Tls."""
    part, dot, attribute = name.partition(".")
    if dot:
        store[part] = {**store.get(part, {}), attribute: value}
    else:
        store[name] = value


def tls_file(attribute: str) -> Callable[[Store, str, str], None]:
    return existing(f"tls.{attribute}", "The value must be a valid file path.")


def tls_type(attribute: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        if text not in ("PEM", "DER"):
            raise failed(shown, f"Unsupported type provided: '{text}'. The available options are 'PEM' or 'DER'.")
        tls_or_plain(store, f"tls.{attribute}", text)

    return read


def tls_number(attribute: str, most: int, why: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        found = re.match(r"\s*[+-]?\d+", text)
        value = int(found[0]) if found else 0
        if not 0 <= value <= most:
            raise failed(shown, why)
        tls_or_plain(store, f"tls.{attribute}", value)

    return read


def use_ssl(store: Store, shown: str, text: str) -> None:
    tls_or_plain(store, "tls.grpc", True)


def trace(name: str, least: int | None, why: str) -> Callable[[Store, str, str], None]:
    def read(store: Store, shown: str, text: str) -> None:
        if least is not None and integer(text) < least:
            raise failed(shown, why)
        store["trace"] = {**store.get("trace", {}), name: (text,)}

    return read


def trace_level(store: Store, shown: str, text: str) -> None:
    if text not in ("OFF", "TIMESTAMPS", "TENSORS"):
        raise failed(
            shown,
            f"Unsupported type provided: '{text}'. The available options are 'OFF', 'TIMESTAMPS', or 'TENSORS'.",
        )
    store["trace"] = {**store.get("trace", {}), "trace_level": (text,)}


def composing(store: Store, shown: str, text: str) -> None:
    for model in re.sub(r"\s", "", text).split(","):
        name, _, version = model.partition(":")
        store["composing"] = (*store.get("composing", ()), (name, version))


def export(store: Store, shown: str, text: str) -> None:
    if Path(text).exists():
        raise failed(shown, "Path must not already exist.")
    store["export_file"] = text


def verbose(store: Store, shown: str, text: str) -> None:
    store["verbose"] = min(2, store.get("verbose", 0) + 1)


def old_concurrency(store: Store, shown: str, text: str) -> None:
    store["old_concurrency"] = integer(text)


def old_maximum(store: Store, shown: str, text: str) -> None:
    store["old_maximum"] = integer(text)


def seconds(store: Store, shown: str, text: str) -> None:
    value = number(text)
    if not value > 0:
        raise failed(shown, "The value must be > 0.")
    store["seconds"] = value


def help_reader(store: Store, shown: str, text: str) -> None:
    raise HelpRequested


def version(store: Store, shown: str, text: str) -> None:
    raise VersionRequested


def compare(store: Store, shown: str, text: str) -> None:
    store["compare"] = (*store.get("compare", ()), text)
