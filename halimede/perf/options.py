"""The options of a run, as values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from halimede.errors import Error

NO_LIMIT = 0
"""The end of a range, or a latency threshold, that is not set."""

UNIX = "unix:"
"""What precedes the path of a Unix socket in a URL."""

TRITON = ("triton", "triton_c_api")
"""The kinds of service that have Triton's protocol."""

SUCCESS, STABILITY_ERROR, OPTION_ERROR, GENERIC_ERROR = 0, 2, 3, 99
"""Exit statuses (X26)."""


class UsageError(Error):
    """A wrong command line. The text is perf_analyzer's, where it has one."""


class HelpRequested(Exception):
    """`--help` was given."""


class VersionRequested(Exception):
    """`--version` was given."""


@dataclass(frozen=True, slots=True)
class Range:
    """Levels from `start` to `end` by `step`. An `end` of NO_LIMIT has no end."""

    start: float = 1
    end: float = 1
    step: float = 1


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS options of both protocols (X15)."""

    grpc: bool = False
    grpc_root: str = ""
    grpc_key: str = ""
    grpc_chain: str = ""
    verify_peer: int = 1
    verify_host: int = 2
    https_root: str = ""
    https_certificate: str = ""
    https_certificate_type: str = "PEM"
    https_key: str = ""
    https_key_type: str = "PEM"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A request parameter (X14). `kind` is bool, int or string."""

    value: str
    kind: str


@dataclass(frozen=True, slots=True)
class Options:
    """What a command line asks for. Times are in the units of the options, mostly milliseconds."""

    model: str = ""
    version: str = ""
    verbose: int = 0
    url: str = ""
    protocol: str = "http"
    batch_size: int = 1
    batch_size_given: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    csv_file: str = ""
    asynchronous: bool = False
    forced_sync: bool = False
    streaming: bool = False
    kind: str = "triton"
    endpoint: str = ""
    grpc_method: str = ""
    proto: str = ""
    signature: str = "serving_default"
    server_directory: str = ""
    model_repositories: tuple[str, ...] = ()
    concurrency: Range | None = None
    rate: Range | None = None
    intervals_file: str = ""
    periodic: Range | None = None
    request_period: int = 10
    fixed_schedule: bool = False
    session_concurrency: int = 0
    distribution: str = "constant"
    max_threads: int = 0
    sequences: int = 4
    binary_search: bool = False
    latency_threshold: int = NO_LIMIT
    mode: str = "time_windows"
    interval: int = 5000
    window_requests: int = 50
    stability: float = 0.1
    percentile: int = -1
    max_trials: int = 10
    request_count: int = 0
    warmup_requests: int = 0
    sequence_length: int = 20
    sequence_length_given: bool = False
    sequence_length_variation: float = 20.0
    sequence_id_start: int = 1
    sequence_ids: int = 0
    """How many correlation ids there are; 0 for any number."""
    serial_sequences: bool = False
    zero_input: bool = False
    data_paths: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    string_length: int = 128
    string_data: str = ""
    shared_memory: str = "none"
    output_shared_memory: int = 102400
    input_format: str = "binary"
    output_format: str = "binary"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    tls: Tls = Tls()
    compression: str = "none"
    trace: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    collect_metrics: bool = False
    metrics_url: str = ""
    metrics_interval: int = 1000
    metrics_interval_given: bool = False
    verbose_csv: bool = False
    composing: tuple[tuple[str, str], ...] = ()
    mpi: bool = False
    export_file: str = ""
    seconds: float = 20.0
    json_file: str = ""
    plots: tuple[str, ...] = ()
    rounds: int = 1
    compare: tuple[str, ...] = ()
    processes: int = 0
    live: bool | None = None
    automatic: bool = False
    """Whether no load was chosen: then levels are found in `seconds`."""

    def where(self) -> str:
        """`host:port` of the server."""
        if self.url:
            return self.url
        if self.kind == "tfserving":
            return "localhost:8500"
        return "localhost:8001" if self.protocol == "grpc" else "localhost:8000"
