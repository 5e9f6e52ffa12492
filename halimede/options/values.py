"""The server's options as frozen values, after the command line and the environment have been read.

Everything that the server needs to know at start is here, so no other room reads flags or environment variables.
Knows nothing of how flags are spelled (see `flags`). Plain values: any thread may read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listening service. Port 0 lets the system choose."""

    port: int
    address: str = "0.0.0.0"
    allowed: bool = True
    reuse_port: bool = False

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged, where and how (contract C4 to C7, L1 to L4)."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    """`default`, `ISO8601` or `json`."""
    file: str = ""
    """Empty: the console."""
    escape: bool = True
    """Messages are written as JSON strings; false with TRITON_SERVER_ESCAPE_LOG_MESSAGES=0."""


SPAN_BATCHING: Final = {"bsp_schedule_delay": 5000, "bsp_max_export_batch_size": 512, "bsp_max_queue_size": 2048}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced, and where to (contract C42)."""

    mode: str = "triton"
    """`triton` or `opentelemetry`."""
    level: tuple[str, ...] = ()
    """TIMESTAMPS, TENSORS, both, or nothing."""
    rate: int = 1000
    count: int = -1
    file: str = ""
    log_frequency: int = 0
    url: str = "http://localhost:4318/v1/traces"
    protocol: str = "http/protobuf"
    """Of the collector: `http/protobuf` or `grpc`; a setting of this server's own."""
    resource: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batching: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict(SPAN_BATCHING)))
    """Settings of the batch processor by name, `bsp_...`; times in milliseconds."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How gRPC connections are kept and protected (contract C32 to C34, G36 to G38). Times in milliseconds."""

    compression_level: str = "none"
    """Of inference responses: `none`, `low`, `medium` or `high`."""
    tls: bool = False
    mutual_tls: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    keepalive_time: int = 7200000
    keepalive_timeout: int = 20000
    keepalive_permit_without_calls: bool = False
    max_response_pool_size: int = 2147483647
    """Responses of one request that may wait for its reader (G32)."""
    max_pings_without_data: int = 2
    min_ping_interval: int = 300000
    max_ping_strikes: int = 2
    max_connection_age: int = 0
    """0: connections may grow as old as they like."""
    max_connection_age_grace: int = 0
    """0: the calls of an old connection may take as long as they like."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What is measured beside the statistics (contract C39 to C41)."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: int = 2000
    counters: bool = True
    """Durations and what caches did for models as counters; without them the other counters stand still too (M25)."""
    summaries: bool = False
    """Durations as summaries with `quantiles` too (M13, M14, M17)."""
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    histograms: bool = False
    """The time to the first response as a histogram too (M12)."""
    on_http: bool = False
    """Whether the HTTP port serves them too; a flag of this server's own."""
    pinned_pool_bytes: int = 268435456
    """What the pool of pinned memory is said to have (C52)."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """All that `halimede serve` was told. The defaults are those of the contract (C2 to C60)."""

    model_repositories: tuple[str, ...] = ()
    """Sorted, without doubles (C8)."""
    server_id: str = "triton"
    exit_timeout_secs: int = 30
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    model_config_name: str = ""
    """Non-empty: `configs/<name>.pbtxt` of a model is preferred (C16)."""
    model_control_mode: str = "none"
    """`none`, `poll` or `explicit`."""
    repository_poll_secs: int = 15
    """Between two looks at the repositories in poll mode, 0: never again after the start (C14)."""
    settle_secs: float = 2.0
    """How long a model's folder must stay as it is before poll mode loads it; a flag of this server's own."""
    model_namespacing: bool = False
    """Whether several repositories may have a model of the same name (C19)."""
    load_models: tuple[str, ...] = ()
    """Models to load at the start in explicit mode; `*` is all of them (C15)."""
    allow_code_upload: bool = False
    """Whether the files that come with a load may be code; a flag of this server's own."""
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    allow_client_shm: bool = False
    inline_execution: bool = True
    """Whether models that are measured to be quick may run on the event loop; a flag of this server's own."""
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Backend name to setting to value; settings for every backend under the empty name (C45)."""
    backend_directory: str = "/opt/tritonserver/backends"
    repoagent_directory: str = "/opt/tritonserver/repoagents"
    """Where Python-based backends lie (C44)."""
    rate_limit: bool = False
    """Whether instances run only as resources and priorities allow (C50)."""
    rate_limit_resources: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """How much there is of each resource, by name and device, -1 for each of them (C51); empty: as much as any instance
    needs."""
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Policy name to setting to value (C57)."""
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Name of a response cache to setting to value (C47, C49, K8); empty: there is none."""
    cache_directory: str = "/opt/tritonserver/caches"
    """Where Triton would look for caches (C48): for a text only."""
    http: Endpoint = Endpoint(8000)
    http_max_input_size: int = 67108864
    """Bytes of a body after inflating (C24)."""
    http_restricted: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Header and value that a request must have, by what it is for: `health`, `inference`, ... (C26)."""
    http_forward_pattern: str = ""
    """Headers whose names match become parameters of an inference (C25)."""
    grpc_restricted: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """As `http_restricted`; the metadata key is made from the first of each pair (C35)."""
    grpc_forward_pattern: str = ""
    grpc: Endpoint = Endpoint(8001)
    grpc_options: GrpcOptions = GrpcOptions()
    metrics: Endpoint = Endpoint(8002)
    measuring: MetricsOptions = MetricsOptions()
    log: LogOptions = LogOptions()
    trace: TraceOptions = TraceOptions()
    grpc_response_delay_secs: int = 0
    """Seconds for which gRPC's answers to all but inferences are held: TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC
    (G40)."""
    delay_scheduler: int = 0
    """Requests that must be queued before a dynamic batcher starts: TRITONSERVER_DELAY_SCHEDULER (C60)."""
    backlog_delay_scheduler: int = 0
    """As `delay_scheduler`, for the backlog of a sequence batcher: TRITONSERVER_BACKLOG_DELAY_SCHEDULER (C60)."""
    warnings: tuple[str, ...] = ()
    """What the user should hear about the options, in the order found; without the word `Warning`."""

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Settings for one backend: its own over those for every backend (C45)."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}
