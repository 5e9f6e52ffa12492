"""Metrics as Prometheus text (the exposition format 0.0.4). Pure.

prometheus-client is not used here: it adds `_total` to the names of counters, which the contract (M1) does not have.
"""

from collections.abc import Iterable, Mapping

from halimede.service.port import MetricFamily


def encode_metrics(families: Iterable[MetricFamily]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        lines += (f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.series)
    return "".join(f"{line}\n" for line in lines).encode()


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
