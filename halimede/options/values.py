"""The server's options as frozen values, after the command line and the environment were read.

The other rooms read these values, never flags or environment variables. Knows no flag by name. Any thread.
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
    """What is logged, where and how (C4 to C7, L1 to L4)."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    """`default`, `ISO8601` or `json`."""
    file: str = ""
    """Empty: the console."""
    escape: bool = True
    """Whether messages are written as JSON strings; TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 switches it off."""


SPAN_BATCHING: Final = {"bsp_schedule_delay": 5000, "bsp_max_export_batch_size": 512, "bsp_max_queue_size": 2048}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced, and where the traces go (C42)."""

    mode: str = "triton"
    """`triton` or `opentelemetry`."""
    level: tuple[str, ...] = ()
    """TIMESTAMPS, TENSORS, both, or none."""
    rate: int = 1000
    count: int = -1
    file: str = ""
    log_frequency: int = 0
    url: str = "http://localhost:4318/v1/traces"
    protocol: str = "http/protobuf"
    """Of the collector: `http/protobuf` or `grpc`. Triton does not have this setting."""
    resource: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batching: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict(SPAN_BATCHING)))
    """Settings of the batch processor by name (`bsp_...`); times in milliseconds."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How gRPC connections are kept alive and protected (C32 to C34, G36 to G38). Times in milliseconds."""

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
    """Responses of one request that may wait for its client (G32)."""
    max_pings_without_data: int = 2
    min_ping_interval: int = 300000
    max_ping_strikes: int = 2
    max_connection_age: int = 0
    """0: no limit."""
    max_connection_age_grace: int = 0
    """For the calls of a connection that reached its age; 0: no limit."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What is measured besides the statistics (C39 to C41)."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: int = 2000
    counters: bool = True
    """Durations and cache hits as counters. Without them the other counters stay at 0 too (M25)."""
    summaries: bool = False
    """Durations as summaries with `quantiles` (M13, M14, M17)."""
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    histograms: bool = False
    """The time to the first response as a histogram (M12)."""
    on_http: bool = False
    """Whether the HTTP port serves metrics too. Triton does not have this flag."""
    pinned_pool_bytes: int = 268435456
    """The size that is reported for the pool of pinned memory (C52)."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients may make the server hold and wait for. Triton does not have these flags. Times of 0 or less mean no
    limit."""

    buffered_bytes: int | None = None
    """None: half of the memory that the process may use. 0 or less: no limit."""
    connection_bytes: int | None = None
    """None: half of the server's. 0 or less: no limit of its own."""
    instances: int = 1024
    """Of one configuration, over all groups and GPUs."""
    warmup_samples: int = 10_000
    """Of one configuration, and requests in the batch of a sample."""
    head_secs: float = 60.0
    body_secs: float = 60.0
    idle_secs: float = 4200.0
    unread_secs: float = 60.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """All options of `halimede serve`, with Triton's defaults (C2 to C60)."""

    model_repositories: tuple[str, ...] = ()
    """Sorted, without duplicates (C8)."""
    server_id: str = "triton"
    exit_timeout_secs: int = 30
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    model_config_name: str = ""
    """If not empty, `configs/<name>.pbtxt` of a model is preferred (C16)."""
    model_control_mode: str = "none"
    """`none`, `poll` or `explicit`."""
    repository_poll_secs: int = 15
    """Seconds between two polls of the repositories; 0: never after the start (C14)."""
    settle_secs: float = 2.0
    """Seconds that a model's folder must not change before poll mode loads it. Triton does not have this flag."""
    model_namespacing: bool = False
    """Whether several repositories may have a model of the same name (C19)."""
    load_models: tuple[str, ...] = ()
    """Models to load at the start in explicit mode; `*` stands for all (C15)."""
    allow_code_upload: bool = False
    """Whether the files of a load request may be code. Triton does not have this flag."""
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    allow_client_shm: bool = False
    inline_execution: bool = True
    """Whether models that are measured to be fast may run on the event loop. Triton does not have this flag."""
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Backend name to setting to value; settings for every backend under the empty name (C45)."""
    backend_directory: str = "/opt/tritonserver/backends"
    """Where Python-based backends are (C44)."""
    build_environments: bool = False
    """Whether Python environments are built from lists of packages. Triton does not have this flag."""
    environment_directory: str = ""
    """Where they are built; empty: in the user's cache."""
    environment_limit_secs: int = 1800
    """Seconds that a build may take."""
    cloud_cache_directory: str = ""
    """Where files of models in cloud storage stay for later servers; empty: nowhere. Triton does not have this flag."""
    repoagent_directory: str = "/opt/tritonserver/repoagents"
    """Where repository agents are."""
    rate_limit: bool = False
    """Whether instances run only if resources and priorities allow it (C50)."""
    rate_limit_resources: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """The amount of each resource, by name and device; device -1 stands for each device (C51). Empty: as much as any
    instance needs."""
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Policy name to setting to value (C57)."""
    gpu_fallback: bool = False
    """Whether instance groups for GPUs that are not there run on the CPU. Triton does not have this flag."""
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Name of a response cache to setting to value (C47, C49, K8); empty: no cache."""
    cache_directory: str = "/opt/tritonserver/caches"
    """Where Triton looks for caches (C48). Only an error text uses it."""
    http: Endpoint = Endpoint(8000)
    http_max_input_size: int = 67108864
    """Bytes of a request body after decompression (C24)."""
    http_max_header_bytes: int = 131072
    client_limits: ClientLimits = ClientLimits()
    auth: str = ""
    """File of the identities that may use the server; empty: everybody may. Triton does not have this flag."""
    audit_file: str = ""
    """Where lines about changes by clients go; empty: to the log, if `auth` is set."""
    http_drain_secs: float = 5.0
    shutdown_delay_secs: float = 0.0
    """Seconds for which the server still serves everybody after a signal, without being ready. Triton does not have
    it."""
    http_restricted: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """The header and value that a request must have, by category: `health`, `inference`, ... (C26)."""
    http_forward_pattern: str = ""
    """Headers whose names match become parameters of an inference request (C25)."""
    grpc_restricted: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """The key and value that the metadata of a call must have, by category (C35)."""
    grpc_forward_pattern: str = ""
    grpc: Endpoint = Endpoint(8001)
    grpc_options: GrpcOptions = GrpcOptions()
    metrics: Endpoint = Endpoint(8002)
    console: Endpoint = Endpoint(0, "127.0.0.1", allowed=False)
    """Triton does not have it."""
    console_hosts: tuple[str, ...] = ()
    """Names by which browsers may know it, besides addresses and localhost; in lower case."""
    measuring: MetricsOptions = MetricsOptions()
    log: LogOptions = LogOptions()
    trace: TraceOptions = TraceOptions()
    grpc_response_delay_secs: int = 0
    """Seconds by which gRPC answers other than inferences are delayed: TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC
    (G40)."""
    delay_scheduler: int = 0
    """Requests that must wait before a dynamic batcher starts: TRITONSERVER_DELAY_SCHEDULER (C60)."""
    backlog_delay_scheduler: int = 0
    """Sequences that must wait before a sequence batcher starts: TRITONSERVER_BACKLOG_DELAY_SCHEDULER (C60)."""
    warnings: tuple[str, ...] = ()
    """Warnings about the options, in the order found, without the word `Warning`."""

    def backend_settings(self, backend: str) -> dict[str, str]:
        """The settings of one backend. Its own override those for every backend (C45)."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}
