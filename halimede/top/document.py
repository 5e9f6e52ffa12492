"""The view as a document for scripts. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from halimede.top.rates import ModelRates
from halimede.top.sample import Look


def document(url: str, before: Look, look: Look, models: Sequence[ModelRates]) -> dict[str, Any]:
    """For scripts: everything, with the names of the fields."""
    return {
        "url": url,
        "server": {"name": look.server, "version": look.version},
        "seconds": look.at - before.at,
        "metrics": look.has_metrics,
        "machine": {
            "cpu_utilization": look.machine.cpu,
            "memory_used_bytes": look.machine.memory_used,
            "memory_total_bytes": look.machine.memory_total,
            "gpu_utilization": dict(look.machine.gpus),
        },
        "models": [asdict(model) for model in models],
    }
