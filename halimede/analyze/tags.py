"""The figures that Model Analyzer knows, by their tags (X40, X43). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Tag:
    """`title` is the heading of a column."""

    title: str
    less_is_better: bool = False
    unit: str = ""


TAGS: Mapping[str, Tag] = MappingProxyType(
    {
        "perf_throughput": Tag("Throughput (infer/sec)", False, "inferences/s"),
        "perf_latency_avg": Tag("avg Latency (ms)", True, "ms"),
        "perf_latency_p90": Tag("p90 Latency (ms)", True, "ms"),
        "perf_latency_p95": Tag("p95 Latency (ms)", True, "ms"),
        "perf_latency_p99": Tag("p99 Latency (ms)", True, "ms"),
        "perf_client_response_wait": Tag("Response Wait Time (ms)", True, "ms"),
        "perf_client_send_recv": Tag("Request/Response Time (ms)", True, "ms"),
        "perf_server_queue": Tag("Server Queue time (ms)", True, "ms"),
        "perf_server_compute_input": Tag("Server Compute Input time (ms)", True, "ms"),
        "perf_server_compute_infer": Tag("Server Compute Infer time (ms)", True, "ms"),
        "perf_server_compute_output": Tag("Server Compute Output time (ms)", True, "ms"),
        "cpu_used_ram": Tag("RAM Usage (MB)", True, "MB"),
        "cpu_available_ram": Tag("RAM Available (MB)", False, "MB"),
        "gpu_used_memory": Tag("GPU Memory Usage (MB)", True, "MB"),
        "gpu_free_memory": Tag("GPU Memory Available (MB)", False, "MB"),
        "gpu_utilization": Tag("GPU Utilization (%)", False, "%"),
        "gpu_power_usage": Tag("GPU Power Usage (W)", True, "W"),
    }
)
"""Figures of a measurement."""
PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "model_name": "Model",
        "gpu_uuid": "GPU UUID",
        "batch_size": "Batch",
        "concurrency": "Concurrency",
        "request_rate": "Request Rate",
        "model_config_path": "Model Config Path",
        "instance_group": "Instance Group",
        "dynamic_batch_sizes": "Max Batch Size",
        "max_batch_size": "Max Batch Size",
        "satisfies_constraints": "Satisfies Constraints",
    }
)
"""What else a table may have as a column."""
ALIASES: Mapping[str, str] = MappingProxyType({"perf_latency": "perf_latency_p99", "cpu_free_ram": "cpu_available_ram"})
"""Older names of tags."""


def tag_of(name: str) -> Tag:
    """The tag of a figure. Those of models that are measured together have the model's name and a colon before it."""
    return TAGS[name.rpartition(":")[2]]


def known(tag: str) -> str | None:
    """The present name of a tag; None if there is none."""
    tag = ALIASES.get(tag, tag)
    return tag if tag in TAGS else None
