"""The table of flags: all flags of Triton (C1 to C59) and those of this server alone, in the groups of the usage text.

Only data. `help` prints it, `parser` reads a command line, `values` is what the flags become. A feature that arrives
sets the `support` of its flags to SERVED and gives them a field in `ServerOptions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from halimede.options.kinds import (
    BACKEND_SETTING,
    BOOLEAN,
    CACHE_SETTING,
    HOST_POLICY,
    INTEGER,
    INTEGER64,
    METRICS_SETTING,
    PATTERN,
    RATE_LIMIT_RESOURCE,
    REAL,
    SWITCH,
    TEXT,
    TRACE_SETTING,
    VERBOSITY,
    Kind,
    Value,
    choice,
    filled,
    integer,
    pair,
    restriction,
)


class Support(Enum):
    """What the server does with a flag."""

    SERVED = auto()
    PLANNED = auto()
    """Refused with any value but its default, since the server cannot do what it asks for."""
    INERT = auto()
    """Read and checked, but without effect: a setting of machinery that does not exist here. `note` says which."""


SERVED, PLANNED, INERT = Support.SERVED, Support.PLANNED, Support.INERT


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `default` is written as on a command line; None: the flag has no value until it is given."""

    name: str
    kind: Kind
    default: str | None
    help: str
    support: Support = SERVED
    note: str = ""
    """INERT: why it has no effect."""
    repeatable: bool = False
    deprecated: str = ""
    """The warning when it is used, with {} for the given text."""

    @property
    def default_value(self) -> Value | None:
        return None if self.default is None else self.kind.read(self.default)


_HTTP_SIZE = integer(bits=64, low=1, message="Error: --http-max-input-size must be greater than 0.")
_HEADER_BYTES = integer(low=1, message="Error: --http-max-header-bytes must be greater than 0.")
_RESPONSE_POOL = integer(low=1, message="Error: --grpc-max-response-pool-size must be greater than 0.")
_INFER_THREADS = integer(
    low=2, high=128, message="invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
)
_COMPRESSION = choice(
    "invalid argument for --grpc_infer_response_compression_level", "none", "low", "medium", "high", any_case=False
)
_TRACE_LEVEL = choice(
    "invalid value for trace level option: {}",
    "off",
    "timestamps",
    "tensors",
    also=("false", "on", "true", "min", "max"),
)
_BYTES_OF_GPU = pair("gpu:bytes", ":", INTEGER, INTEGER64)
_PART_OF_GPU = pair("gpu:fraction", ":", INTEGER, REAL)
_PORTS = pair("low-high", "-", INTEGER, INTEGER)
_RESTRICTED_API = restriction("http-restricted-api", "api")
_RESTRICTED_PROTOCOL = restriction("grpc-restricted-protocol", "protocol")
_EVENT_LOOP = "connections are served by one event loop"
_NO_REUSE = "request state is not pooled"
_SAGEMAKER = "it needs --allow-sagemaker, which is not supported yet"
_VERTEX = "it needs --allow-vertex-ai, which is not supported yet"
_NO_POOL = "there is no such memory pool"


def _trace_warning(flag: str, instead: str) -> str:
    return (
        f"'--{flag}' has been deprecated and will be removed in future releases. "
        f"Please use '--trace-config {instead} instead."
    )


# One flag per line if it fits, so that the table can be read by columns.
# fmt: off
GROUPS: Mapping[str, tuple[Flag, ...]] = MappingProxyType({
    "": (
        Flag("help", SWITCH, None, "Print this text and exit."),
        Flag("version", SWITCH, None, "Print the version and exit."),
    ),
    # C2, C3, C59; inline-execution is ours.
    "Server": (
        Flag("id", TEXT, "triton", "Name of this server in its metadata."),
        Flag(
            "exit-timeout-secs", INTEGER, "30",
            "Seconds to wait at shutdown for inferences in flight. After that the server exits anyway.",
        ),
        Flag(
            "shutdown-delay-secs", REAL, "0",
            "Seconds between a signal and the shutdown: the server is not ready, and still serves everybody.",
        ),
        Flag("allow-client-shm", BOOLEAN, "false", "Let clients register shared memory."),
        Flag(
            "inline-execution", BOOLEAN, "true",
            "Run models that are measured to be fast on the event loop; false: always on threads of their instances.",
        ),
    ),
    # C4 to C7.
    "Logging": (
        Flag("log-verbose", VERBOSITY, "0", "Verbose messages up to this level; 0 is none."),
        Flag("log-info", BOOLEAN, "true", "Log information."),
        Flag("log-warning", BOOLEAN, "true", "Log warnings."),
        Flag("log-error", BOOLEAN, "true", "Log errors."),
        Flag(
            "log-format", choice("invalid argument for --log-format", "default", "ISO8601", "json", any_case=False),
            "default",
            "Prefix of a line: LMMDD hh:mm:ss.uuuuuu, or YYYY-MM-DDThh:mm:ssZ L; json: each line is an object.",
        ),
        Flag("log-file", TEXT, "", "Append the log to this file instead of writing it to the console."),
    ),
    # C8 to C20; settle-secs, cloud-cache-directory and allow-code-upload are ours.
    "Model Repository": (
        # The older name of the next flag. If both are given both count.
        Flag("model-store", TEXT, None, "Same as --model-repository.", repeatable=True),
        Flag("model-repository", TEXT, None, "Directory of a model repository.", repeatable=True),
        Flag("exit-on-error", BOOLEAN, "true", "Exit if something fails at start; false: serve what did load."),
        Flag(
            "disable-auto-complete-config", SWITCH, None,
            "Never complete a model configuration from the model. It must have every required field.",
        ),
        Flag(
            "strict-readiness", BOOLEAN, "true",
            "Ready only when every model is available; false: when the server itself is.",
        ),
        Flag(
            "model-control-mode", choice("invalid argument for --model-control-mode", "none", "poll", "explicit"),
            "none", "Load all models once (none), follow its changes (poll) or load on request (explicit).",
        ),
        Flag(
            "repository-poll-secs", INTEGER, "15", "Seconds between two polls of the repository; 0: none.",
        ),
        Flag(
            "settle-secs", REAL, "2",
            "Seconds that the files of a model must not change before poll mode loads it.",
        ),
        Flag(
            "cloud-cache-directory", TEXT, "",
            "Keep the files of models in cloud storage here, so that the next start need not download them again.",
        ),
        Flag("load-model", TEXT, None, "Model to load at start in explicit mode; * is all.", repeatable=True),
        Flag(
            "allow-code-upload", BOOLEAN, "false",
            "Let clients send model files with a load even if they are code, which this server then runs.",
        ),
        Flag(
            "model-config-name", filled("Error: empty argument for --model-config-name"), None,
            "Use configs/<name>.pbtxt of a model, if it exists, instead of config.pbtxt.",
        ),
        Flag("model-load-thread-count", INTEGER, "4", "Models loaded at the same time."),
        Flag("model-load-retry-count", INTEGER, "0", "Further attempts when a model version fails to load."),
        Flag("model-namespacing", BOOLEAN, "false", "Allow one model name in several repositories."),
        Flag(
            # A flag without effect here must not stop a start script that was written for Triton.
            "enable-peer-access", BOOLEAN, "true", "Let GPUs read each other's memory.",
            INERT, "device memory is left to the runtimes",
        ),
    ),
    # C21 to C26; http-drain-secs and http-max-header-bytes are ours.
    "HTTP": (
        Flag("allow-http", BOOLEAN, "true", "Serve HTTP."),
        Flag("http-address", TEXT, "0.0.0.0", "Address to listen on for HTTP, or unix:<path>."),
        Flag("http-port", INTEGER, "8000", "Port to listen on for HTTP."),
        Flag("reuse-http-port", BOOLEAN, "false", "Let several servers listen on the same HTTP port."),
        Flag("http-header-forward-pattern", PATTERN, "", "Headers that become parameters of an inference request."),
        Flag("http-thread-count", INTEGER, "8", "Threads that handle HTTP requests.", INERT, _EVENT_LOOP),
        Flag(
            "http-drain-secs", REAL, "5",
            "Seconds at shutdown until idle connections are closed; at most half of the exit timeout.",
        ),
        Flag("http-max-input-size", _HTTP_SIZE, "67108864", "Largest request body in bytes."),
        Flag("http-max-header-bytes", _HEADER_BYTES, "131072", "Largest head of a request in bytes."),
        Flag(
            "http-restricted-api", _RESTRICTED_API, None, "Serve these APIs only to requests with this header.",
            repeatable=True,
        ),
    ),
    # C27 to C35.
    "GRPC": (
        Flag("allow-grpc", BOOLEAN, "true", "Serve gRPC."),
        Flag("grpc-address", TEXT, "0.0.0.0", "Address to listen on for gRPC, or unix:<path>."),
        Flag("grpc-port", INTEGER, "8001", "Port to listen on for gRPC."),
        Flag("reuse-grpc-port", BOOLEAN, "false", "Let several servers listen on the same gRPC port."),
        Flag("grpc-header-forward-pattern", PATTERN, "", "Metadata that become parameters of an inference request."),
        Flag("grpc-infer-thread-count", _INFER_THREADS, "2", "Threads that handle inference.", INERT, _EVENT_LOOP),
        Flag("grpc-infer-allocation-pool-size", INTEGER, "8", "Request states kept for reuse.", INERT, _NO_REUSE),
        Flag(
            "grpc-max-response-pool-size", _RESPONSE_POOL, "2147483647",
            "Responses of one request that may wait for a slow client before the model has to wait.",
        ),
        Flag("grpc-use-ssl", BOOLEAN, "false", "Encrypt gRPC."),
        Flag("grpc-use-ssl-mutual", BOOLEAN, "false", "Encrypt gRPC and check the client's certificate."),
        Flag("grpc-server-cert", TEXT, "", "PEM file with the server's certificate."),
        Flag("grpc-server-key", TEXT, "", "PEM file with the server's key."),
        Flag("grpc-root-cert", TEXT, "", "PEM file with the root certificate."),
        Flag("grpc-infer-response-compression-level", _COMPRESSION, "none", "Compress inference responses."),
        Flag("grpc-keepalive-time", INTEGER, "7200000", "Milliseconds between keepalive pings."),
        Flag("grpc-keepalive-timeout", INTEGER, "20000", "Milliseconds to wait for their answer."),
        Flag("grpc-keepalive-permit-without-calls", BOOLEAN, "false", "Ping idle connections."),
        Flag("grpc-http2-max-pings-without-data", INTEGER, "2", "Pings sent without data."),
        Flag(
            "grpc-http2-min-recv-ping-interval-without-data", INTEGER, "300000",
            "Milliseconds that a client must leave between pings.",
        ),
        Flag("grpc-http2-max-ping-strikes", INTEGER, "2", "Bad pings tolerated."),
        Flag("grpc-max-connection-age", INTEGER, "0", "Milliseconds a connection may live."),
        Flag("grpc-max-connection-age-grace", INTEGER, "0", "Milliseconds of grace after that."),
        Flag(
            "grpc-restricted-protocol", _RESTRICTED_PROTOCOL, None,
            "Serve these protocols only to requests with this metadata, triton-grpc-protocol-<key>.", repeatable=True,
        ),
    ),
    # Both are ours.
    "Access": (
        Flag(
            "auth", TEXT, "",
            "File of the identities that may use the server, with hashes of their keys, roles and limits; 'halimede "
            "auth' makes it. It is read again when it changes.",
        ),
        Flag(
            "audit-file", TEXT, "",
            "Append a line of JSON for each change that a client makes (loads, settings, shared memory) to this file. "
            "With --auth alone these lines go to the log.",
        ),
    ),
    # All of them are ours.
    "Limits of clients": (
        Flag(
            "max-buffered-bytes", INTEGER64, None,
            "Bytes of requests and unread answers that the server holds; beyond them clients wait, then get 503 or "
            "UNAVAILABLE. Default: half of the memory that the process may use. 0: no limit.",
        ),
        Flag(
            "max-connection-bytes", INTEGER64, None,
            "Bytes of requests and unread answers of one connection. Default: half of --max-buffered-bytes. 0: no "
            "limit of its own.",
        ),
        Flag("max-instances", INTEGER, "1024", "Instances that one configuration may ask for, over all its versions."),
        Flag(
            "max-warmup-samples", INTEGER, "10000",
            "Warm-up samples that one configuration may ask for, and requests in the batch of a sample.",
        ),
        Flag("head-timeout-secs", REAL, "60", "Seconds for the whole head of a request. 0: no limit."),
        Flag("body-timeout-secs", REAL, "60", "Seconds without a byte of a request that has begun. 0: no limit."),
        Flag(
            "idle-timeout-secs", REAL, "4200",
            "Seconds without a request after which an HTTP connection is closed. 0: never.",
        ),
        Flag(
            "unread-timeout-secs", REAL, "60",
            "Seconds in which a client reads nothing of its answer, after which it is disconnected. 0: no limit.",
        ),
    ),
    # Ours.
    "Console": (
        Flag(
            "console-port", INTEGER, None,
            "Serve the console at this port: a page that shows the models and lets you try them. Off if not given.",
        ),
        Flag("console-address", TEXT, "127.0.0.1", "Address to listen on for the console."),
        Flag(
            "console-host", TEXT, None,
            "A name by which browsers may know the console, besides localhost and addresses.",
            repeatable=True,
        ),
    ),
    # C36. The first flag decides: without it the others have nothing to act on.
    "Sagemaker": (
        Flag("allow-sagemaker", BOOLEAN, "false", "Serve SageMaker's protocol.", PLANNED),
        Flag("sagemaker-port", INTEGER, "8080", "Port to listen on for SageMaker.", INERT, _SAGEMAKER),
        Flag("sagemaker-safe-port-range", _PORTS, None, "Ports allowed for the others.", INERT, _SAGEMAKER),
        Flag("sagemaker-thread-count", INTEGER, "8", "Threads that handle its requests.", INERT, _SAGEMAKER),
    ),
    # C37.
    "Vertex": (
        Flag("allow-vertex-ai", BOOLEAN, "false", "Serve Vertex AI's protocol.", PLANNED),
        Flag("vertex-ai-port", INTEGER, "8080", "Port to listen on for Vertex AI.", INERT, _VERTEX),
        Flag("vertex-ai-thread-count", INTEGER, "8", "Threads that handle its requests.", INERT, _VERTEX),
        Flag("vertex-ai-default-model", TEXT, "", "Model of requests that name none.", INERT, _VERTEX),
    ),
    # C39 to C41; http-metrics is ours.
    "Metrics": (
        Flag("allow-metrics", BOOLEAN, "true", "Serve metrics."),
        Flag("allow-gpu-metrics", BOOLEAN, "true", "Measure GPUs."),
        Flag("allow-cpu-metrics", BOOLEAN, "true", "Measure the CPU."),
        Flag("http-metrics", BOOLEAN, "false", "Serve metrics at /metrics of the HTTP port too."),
        Flag("metrics-address", TEXT, None, "Address to listen on for metrics; that of HTTP if not given."),
        Flag("metrics-port", INTEGER, "8002", "Port to listen on for metrics."),
        Flag("metrics-interval-ms", INTEGER, "2000", "Twice the milliseconds between two samples of CPU and GPUs."),
        Flag(
            "metrics-config", METRICS_SETTING, None,
            "A setting of the metrics: counter_latencies=false, summary_latencies=true, histogram_latencies=true or "
            "summary_quantiles=<quantile>:<error>[,...].",
            repeatable=True,
        ),
    ),
    # C42.
    "Tracing": (
        Flag(
            "trace-config", TRACE_SETTING, None,
            "A setting of tracing: level=TIMESTAMPS or TENSORS, rate=<requests per trace>, count=<most traces>, "
            "mode=triton or opentelemetry; triton,file=<path>, triton,log-frequency=<traces in a file>; "
            "opentelemetry,url=<collector>, opentelemetry,protocol=http/protobuf or grpc, "
            "opentelemetry,resource=<attribute>=<value>, opentelemetry,bsp_max_queue_size=<spans>, "
            "opentelemetry,bsp_schedule_delay=<ms>, opentelemetry,bsp_max_export_batch_size=<spans>.",
            repeatable=True,
        ),
    ),
    # C44, C45; those of Python environments are ours.
    "Backend": (
        Flag(
            "backend-directory", TEXT, "/opt/tritonserver/backends",
            "Directory of Python-based backends: NAME/model.py serves the models of backend NAME.",
        ),
        Flag(
            "backend-config", BACKEND_SETTING, None,
            "A setting of one backend, or of all (such as default-max-batch-size).", repeatable=True,
        ),
        Flag(
            "python-environments", choice("invalid argument for --python-environments", "given", "build"), "given",
            "What EXECUTION_ENV_PATH of a model may name: a folder or an archive (given), or a list of packages too, a "
            "requirements.txt or pyproject.toml, which is then built with uv or pip. An installer may run code of the "
            "packages (build).",
        ),
        Flag(
            "python-environment-directory", TEXT, None,
            "Directory of environments that were built; $XDG_CACHE_HOME/halimede/environments or "
            "~/.cache/halimede/environments if not given.",
        ),
        Flag("python-environment-timeout-secs", INTEGER, "1800", "Seconds that the build of an environment may take."),
    ),
    "Repository Agent": (
        Flag(
            "repoagent-directory", TEXT, "/opt/tritonserver/repoagents",
            "Directory of repository agents: NAME/agent.py has the class of agent NAME.",
        ),
    ),
    # C47, C48.
    "Response Cache": (
        Flag(
            "cache-config", CACHE_SETTING, None,
            "A setting of the cache for responses: local,size=<bytes>, or redis,host=<name> and redis,port=<number>; "
            "single_flight=true lets equal requests wait for the first one.",
            repeatable=True,
        ),
        Flag(
            "cache-directory", TEXT, "/opt/tritonserver/caches", "Directory of cache libraries.",
            INERT, "caches are not shared libraries here",
        ),
    ),
    # C50, C51.
    "Rate Limiter": (
        Flag(
            "rate-limit", choice("invalid argument for --rate-limit", "execution_count", "off"), "off",
            "Run instances when their resources allow it (execution_count), or as soon as they are free (off).",
        ),
        Flag(
            "rate-limit-resource", RATE_LIMIT_RESOURCE, None,
            "The amount of a resource, on each device or on one. If not given: as much as any instance needs.",
            repeatable=True,
        ),
    ),
    # C52 to C58; gpu-fallback is ours.
    "Memory/Device Management": (
        Flag("pinned-memory-pool-byte-size", INTEGER64, "268435456", "Pinned memory in bytes.", INERT, _NO_POOL),
        Flag(
            "cuda-memory-pool-byte-size", _BYTES_OF_GPU, None, "Memory pool of a GPU.",
            INERT, _NO_POOL, repeatable=True,
        ),
        Flag(
            "cuda-virtual-address-size", _BYTES_OF_GPU, None, "Address space of one growable state on a GPU.",
            INERT, _NO_POOL, repeatable=True,
        ),
        Flag(
            "min-supported-compute-capability", REAL, "0.0", "GPUs below this are not used.",
            INERT, "the runtimes choose the GPUs that they can use",
        ),
        Flag(
            "buffer-manager-thread-count", INTEGER, "0", "Threads that copy tensors.",
            INERT, "tensors are copied where they are used",
        ),
        Flag(
            "host-policy", HOST_POLICY, None,
            "Where instances of a host policy run: cpu-cores=<low>-<high>[,...] or numa-node=<node>. An instance group "
            "that names no policy has cpu, gpu_<id> or model.",
            repeatable=True,
        ),
        Flag(
            "gpu-fallback", choice("invalid argument for --gpu-fallback", "none", "cpu", any_case=False), "none",
            "If an instance group names GPUs that are not there, or that its backend cannot use: refuse the model "
            "(none), or run the group on the CPU, with a warning (cpu).",
        ),
        Flag(
            # Refused and not ignored: an operator who sets a limit relies on it.
            "model-load-gpu-limit", _PART_OF_GPU, None, "Refuse a load above this part of a GPU's memory.",
            PLANNED, repeatable=True,
        ),
    ),
    # C11, C43, C49.
    "DEPRECATED": (
        Flag(
            "strict-model-config", BOOLEAN, "false", "The opposite of completing model configurations.",
            deprecated="'--strict-model-config' has been deprecated! "
            "Please use '--disable-auto-complete-config' instead.",
        ),
        Flag(
            "response-cache-byte-size", INTEGER64, None, "Use --cache-config=local,size=<bytes>.",
            deprecated="'--response-cache-byte-size' has been deprecated! This will default to the 'local' cache "
            "implementation with the provided byte size for its config. Please use '--cache-config' instead. The "
            "equivalent --cache-config CLI args would be: '--cache-config=local,size={}'",
        ),
        Flag(
            "trace-file", TEXT, "", "Use --trace-config=triton,file=<path>.",
            deprecated=_trace_warning("trace-file", "triton,file=<filepath>"),
        ),
        Flag(
            "trace-level", _TRACE_LEVEL, "off", "Use --trace-config=level=<level>.", repeatable=True,
            deprecated=_trace_warning("trace-level", "level=<OFF|TIMESTAMPS|TENSORS>"),
        ),
        Flag(
            "trace-rate", INTEGER, "1000", "Use --trace-config=rate=<rate>.",
            deprecated=_trace_warning("trace-rate", "rate=<rate value>"),
        ),
        Flag(
            "trace-count", INTEGER, "-1", "Use --trace-config=count=<count>.",
            deprecated=_trace_warning("trace-count", "count=<count value>"),
        ),
        Flag(
            "trace-log-frequency", INTEGER, "0", "Use --trace-config=triton,log-frequency=<count>.",
            deprecated=_trace_warning("trace-log-frequency", "triton,log-frequency=<log frequency value>"),
        ),
    ),
})
# fmt: on

FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for group in GROUPS.values() for flag in group})

MOST_USED = (
    *("model-repository", "model-control-mode", "load-model", "http-port", "grpc-port", "metrics-port", "http-address"),
    *("grpc-address", "exit-on-error", "strict-readiness", "allow-client-shm", "backend-config", "cache-config"),
    *("log-verbose", "log-format", "log-file", "help", "version"),
)
"""The flags that the help lists first, instead of in their groups."""
