"""From a command line and an environment to `ServerOptions`, as GNU getopt_long does it and with Triton's texts.

Pure. Raises Invalid for a wrong line, Unsupported for a flag without its feature, `HelpRequested` or `VersionRequested`
if such a flag comes before any error (C1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import TypeVar

from halimede.errors import Invalid, Unsupported
from halimede.options.flags import FLAGS, INERT, PLANNED, Flag
from halimede.options.kinds import INTEGER, SWITCH, Value
from halimede.options.settings import OLD_TRACE_FLAGS, metrics_options, trace_options
from halimede.options.values import (
    ClientLimits,
    Endpoint,
    GrpcOptions,
    LogOptions,
    MetricsOptions,
    ServerOptions,
    TraceOptions,
)

_Value = TypeVar("_Value", bound=Value)

_EACH_DEVICE = -1
MAX_PORT = 65535


class HelpRequested(Exception):
    """The user asked for the usage text."""


class VersionRequested(Exception):
    """The user asked for the version."""


class _Given:
    """The values of each flag in the order given, and warnings about them."""

    def __init__(self) -> None:
        self._values: dict[str, list[Value]] = {}
        self.warnings: list[str] = []

    def add(self, flag: Flag, text: str) -> None:
        if flag.deprecated:
            self.warnings.append(flag.deprecated.format(text))
        try:
            value = flag.kind.read(text)
        except Invalid as error:
            raise error.prefixed(f'Bad option: "--{flag.name}".\n') from None
        if _is_read_in_part(text, value):
            self.warnings.append(f"'--{flag.name}={text}' is read as {value}.")
        self._values.setdefault(flag.name, []).append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def every(self, name: str, kind: type[_Value]) -> list[_Value]:
        return [_checked(value, kind) for value in self._values.get(name, [])]

    def last(self, name: str, kind: type[_Value]) -> _Value:
        values = self._values.get(name)
        return _checked(values[-1] if values else FLAGS[name].default_value, kind)

    def changed(self) -> Iterator[tuple[Flag, Value]]:
        """The flags whose last value is not their default, with that value, in the order of the table."""
        for flag in FLAGS.values():
            if flag.name in self._values and self._values[flag.name][-1] != flag.default_value:
                yield flag, self._values[flag.name][-1]


def _checked(value: Value | None, kind: type[_Value]) -> _Value:
    assert isinstance(value, kind), (value, kind)
    return value


def _is_read_in_part(text: str, value: Value) -> bool:
    """Whether only the start of `text` is a number: `80x` is read as 80 (C1)."""
    # A text that begins with a letter is a word such as `true`, which some kinds accept for a number.
    if isinstance(value, bool) or not isinstance(value, int | float) or text[:1].isalpha():
        return False
    try:
        return type(value)(text) != value
    except ValueError:
        return True


def suggestion(word: str, known: Sequence[str], shown: str = "{}") -> str:
    """A sentence `. Did you mean 'x'?` with the nearest known word, to append; empty if none is near."""
    import difflib  # only after a mistake

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f". Did you mean '{shown.format(near[0])}'?" if near else ""


def _find(name: str, word: str) -> Flag:
    if name in FLAGS:
        return FLAGS[name]
    # getopt accepts any unambiguous start of a name.
    candidates = [known for known in FLAGS if known.startswith(name)]
    if len(candidates) == 1:
        return FLAGS[candidates[0]]
    if not candidates:
        hint = suggestion(name.replace("_", "-").lower(), tuple(FLAGS), "--{}")
        raise Invalid(f"unrecognized option '{word}'{hint}")
    possibilities = " ".join(f"'--{known}'" for known in candidates)
    raise Invalid(f"option '{word}' is ambiguous; possibilities: {possibilities}")


def _single_dash(word: str) -> Invalid:
    """The error for `-x`. getopt takes it for a short option. Triton has none, and `-h` is ours."""
    name = word[1:].partition("=")[0]
    return Invalid(f"invalid option -- '{word[1]}'{suggestion(name, tuple(FLAGS), '--{}')}")


def _scan(args: Sequence[str]) -> Iterator[tuple[Flag, str]]:
    """Flags and the texts of their values, in order. Raises Invalid for another word, after all flags were read."""
    words = iter(args)
    others: list[str] = []
    for word in words:
        # getopt takes everything after it for arguments, and there are none.
        if word == "--":
            others.extend(words)
        elif word.startswith("--"):
            yield _read_flag(word, words)
        elif word == "-h":
            yield FLAGS["help"], ""
        elif word.startswith("-") and word != "-":  # getopt takes a single dash for an argument
            raise _single_dash(word)
        else:
            others.append(word)
    if others:
        example = "" if others[0].startswith("-") else f", such as --model-repository={others[0]}"
        raise Invalid(f"Unexpected argument: {others[0]}\nFlags are written --flag=value or --flag value{example}.")


def _read_flag(word: str, following: Iterator[str]) -> tuple[Flag, str]:
    name, equals, text = word[2:].partition("=")
    flag = _find(name, word)
    if flag.kind is SWITCH:
        if equals:
            raise Invalid(f"option '--{flag.name}' doesn't allow an argument")
        return flag, ""
    # `--flag=` gives an empty value; without `=` the next word is the value, even if it looks like a flag.
    value = text if equals else next(following, None)
    if value is None:
        raise Invalid(f"option '--{flag.name}' requires an argument")
    return flag, value


def _environment_words(environment: Mapping[str, str]) -> list[str]:
    """Flags that the environment sets. Those of the command line come later and override them (C21, C37)."""
    # Vertex AI sets this variable in its containers.
    if environment.get("AIP_MODE") != "PREDICTION":
        return []
    return ["--allow-http=false", "--allow-vertex-ai=true"]


def _check_combinations(given: _Given) -> None:
    if "load-model" in given and given.last("model-control-mode", str) != "explicit":
        raise Invalid("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    # Given twice, `*` still stands alone.
    names = given.every("load-model", str)
    if "*" in names and len(set(names)) > 1:
        raise Invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    if "response-cache-byte-size" in given and "cache-config" in given:
        raise Invalid(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )


def _check_support(given: _Given, environment: Mapping[str, str]) -> None:
    """Refuses flags without their feature; warns about flags without effect."""
    for flag, value in given.changed():
        if flag.support is PLANNED:
            # The default of such a flag is supported, so the message names the value.
            shown = "" if flag.default is None else f"={str(value).lower()}"
            asked = f"--{flag.name}=true" in _environment_words(environment)
            hint = f"\nAIP_MODE asks for it: --{flag.name}=false does without." if asked else ""
            raise Unsupported(f"--{flag.name}{shown} is not supported yet{hint}")
        if flag.support is INERT:
            given.warnings.append(f"'--{flag.name}' has no effect: {flag.note}.")


def _check_ports(options: ServerOptions) -> None:
    """Refuses a port that does not exist, and two services at one address and port (C38).

    Ports of services that are off may be anything. Port 0 never collides: the system chooses the port.
    """
    services = (
        ("HTTP", options.http),
        ("GRPC", options.grpc),
        ("metrics", options.metrics),
        ("console", options.console),
    )
    for name, endpoint in services:
        if endpoint.allowed and not 0 <= endpoint.port <= MAX_PORT:
            raise Invalid(
                f'Bad option: "--{name.lower()}-port".\nProvided option value is out of bound. Got {endpoint.port}'
            )
    listening = [(name, endpoint) for name, endpoint in services if endpoint.allowed and endpoint.port]
    for (one, here), (other, there) in combinations(listening, 2):
        if str(here) == str(there):
            raise Invalid(
                f"The server cannot listen to {one} requests and {other} requests at the same address and port {here}"
            )


def _auto_complete(given: _Given) -> bool:
    # The newer flag decides if both are given (C10).
    if "disable-auto-complete-config" not in given:
        return not given.last("strict-model-config", bool)
    # Both flags were given, and they contradict each other.
    if "strict-model-config" in given and not given.last("strict-model-config", bool):
        given.warnings.append(
            "Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )
    return False


def _repositories(given: _Given, environment: Mapping[str, str]) -> tuple[str, ...]:
    paths = {*given.every("model-repository", str), *given.every("model-store", str)}
    # Vertex AI names the repository this way. A flag goes before it (C8).
    if not paths and environment.get("AIP_STORAGE_URI"):
        paths = {environment["AIP_STORAGE_URI"]}
    return tuple(sorted(paths))


def _backend_config(given: _Given) -> Mapping[str, Mapping[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for backend, setting, value in given.every("backend-config", tuple):
        settings.setdefault(backend, {})[setting] = value
    return MappingProxyType({backend: MappingProxyType(values) for backend, values in settings.items()})


def _rate_limit_resources(given: _Given) -> Mapping[tuple[str, int], int]:
    """Amounts by name and device. If a resource is given twice, the smaller amount counts (C51)."""
    counts: dict[tuple[str, int], int] = {}
    for name, count, device in given.every("rate-limit-resource", tuple):
        key = name, int(device or _EACH_DEVICE)
        counts[key] = min(int(count), counts.get(key, int(count)))
    return MappingProxyType(counts)


def _host_policies(given: _Given) -> Mapping[str, Mapping[str, str]]:
    policies: dict[str, dict[str, str]] = {}
    for policy, setting, value in given.every("host-policy", tuple):
        policies.setdefault(policy, {})[setting] = value
    return MappingProxyType({policy: MappingProxyType(values) for policy, values in policies.items()})


_CACHE_ENVIRONMENT = (
    ("redis", "host", "TRITON_REDIS_HOST"),
    ("redis", "port", "TRITON_REDIS_PORT"),
    ("redis", "user", "TRITONCACHE_REDIS_USERNAME"),
    ("redis", "password", "TRITONCACHE_REDIS_PASSWORD"),
)
"""Settings that the environment has for a cache, unless the command line has them (K8)."""


def _cache_config(given: _Given, environment: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    configs: dict[str, dict[str, str]] = {}
    for cache, setting, value in given.every("cache-config", tuple):
        configs.setdefault(cache, {})[setting] = value
    if "response-cache-byte-size" in given:
        # The older flag stands for a local cache of this size (C49).
        configs["local"] = {"size": str(given.last("response-cache-byte-size", int))}
    for cache, setting, variable in _CACHE_ENVIRONMENT:
        # The environment has secrets of a cache, but does not choose the cache.
        if cache in configs and environment.get(variable):
            configs[cache].setdefault(setting, environment[variable])
    return MappingProxyType({cache: MappingProxyType(settings) for cache, settings in configs.items()})


def _backend_directory(given: _Given) -> str:
    """The global backend setting (C45) overrides the flag (C44) in any order."""
    return _backend_config(given).get("", {}).get("backend-directory") or given.last("backend-directory", str)


def _endpoint(given: _Given, service: str) -> Endpoint:
    return Endpoint(
        port=given.last(f"{service}-port", int),
        address=given.last(f"{service}-address", str),
        allowed=given.last(f"allow-{service}", bool),
        reuse_port=given.last(f"reuse-{service}-port", bool),
    )


def _metrics(given: _Given, http: Endpoint) -> Endpoint:
    # Metrics cannot share the Unix socket of HTTP.
    inherited = "127.0.0.1" if http.address.startswith("unix:") else http.address
    address = given.last("metrics-address", str) if "metrics-address" in given else inherited
    return Endpoint(given.last("metrics-port", int), address, given.last("allow-metrics", bool))


def _console(given: _Given) -> Endpoint:
    wanted = "console-port" in given
    return Endpoint(given.last("console-port", int) if wanted else 0, given.last("console-address", str), wanted)


def _measuring(given: _Given) -> MetricsOptions:
    settings = [(setting, value) for _, setting, value in given.every("metrics-config", tuple)]
    allowed = given.last("allow-metrics", bool)
    on_http = given.last("http-metrics", bool)
    measures = allowed or on_http  # without a port for them, measuring would only cost time
    return replace(
        metrics_options(settings, given.warnings.append),
        gpu=measures and given.last("allow-gpu-metrics", bool),
        cpu=measures and given.last("allow-cpu-metrics", bool),
        interval_ms=max(1, given.last("metrics-interval-ms", int)),
        on_http=on_http,
        pinned_pool_bytes=max(0, given.last("pinned-memory-pool-byte-size", int)),
    )


def _log(given: _Given, environment: Mapping[str, str]) -> LogOptions:
    return LogOptions(
        verbose=given.last("log-verbose", int),
        info=given.last("log-info", bool),
        warning=given.last("log-warning", bool),
        error=given.last("log-error", bool),
        format=given.last("log-format", str),
        file=given.last("log-file", str),
        escape=environment.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0",
    )


def _trace(given: _Given, environment: Mapping[str, str]) -> TraceOptions:
    old = {
        flag: [str(value) for value in given.every(flag, int if FLAGS[flag].kind is INTEGER else str)]
        for flag in OLD_TRACE_FLAGS
        if flag in given
    }
    return trace_options(given.every("trace-config", tuple), old, environment, given.warnings.append)


def _grpc(given: _Given) -> GrpcOptions:
    mutual = given.last("grpc-use-ssl-mutual", bool)
    return GrpcOptions(
        compression_level=given.last("grpc-infer-response-compression-level", str),
        # The flag of mutual TLS switches TLS on, even with the value false (G37).
        tls=given.last("grpc-use-ssl", bool) or "grpc-use-ssl-mutual" in given,
        mutual_tls=mutual,
        server_cert=given.last("grpc-server-cert", str),
        server_key=given.last("grpc-server-key", str),
        root_cert=given.last("grpc-root-cert", str),
        max_response_pool_size=given.last("grpc-max-response-pool-size", int),
        keepalive_time=given.last("grpc-keepalive-time", int),
        keepalive_timeout=given.last("grpc-keepalive-timeout", int),
        keepalive_permit_without_calls=given.last("grpc-keepalive-permit-without-calls", bool),
        max_pings_without_data=given.last("grpc-http2-max-pings-without-data", int),
        min_ping_interval=given.last("grpc-http2-min-recv-ping-interval-without-data", int),
        max_ping_strikes=given.last("grpc-http2-max-ping-strikes", int),
        max_connection_age=given.last("grpc-max-connection-age", int),
        max_connection_age_grace=given.last("grpc-max-connection-age-grace", int),
    )


def _client_limits(given: _Given) -> ClientLimits:
    return ClientLimits(
        buffered_bytes=given.last("max-buffered-bytes", int) if "max-buffered-bytes" in given else None,
        connection_bytes=given.last("max-connection-bytes", int) if "max-connection-bytes" in given else None,
        instances=given.last("max-instances", int),
        warmup_samples=given.last("max-warmup-samples", int),
        head_secs=given.last("head-timeout-secs", float),
        body_secs=given.last("body-timeout-secs", float),
        idle_secs=given.last("idle-timeout-secs", float),
        unread_secs=given.last("unread-timeout-secs", float),
    )


def _restrictions(given: _Given, flag: str, word: str) -> Mapping[str, tuple[str, str]]:
    """The key and value that each category requires. Raises Invalid for a category with two (C26, C35)."""
    keys: dict[str, tuple[str, str]] = {}
    for names, key, value in given.every(flag, tuple):
        for name in names.split(","):
            if name in keys:
                raise Invalid(
                    f"Bad option: \"--{flag}\".\nrestricted {word} '{name}' can not be specified in multiple config "
                    "groups"
                )
            keys[name] = (key, value)
    return MappingProxyType(keys)


def _count(environment: Mapping[str, str], name: str) -> int:
    # These variables are for tests of the scheduler. A wrong one must not keep a server from starting.
    digits = environment.get(name, "").strip()
    return int(digits) if digits.isdecimal() else 0


def _compile(given: _Given, environment: Mapping[str, str]) -> ServerOptions:
    http = _endpoint(given, "http")
    return ServerOptions(
        model_repositories=_repositories(given, environment),
        server_id=given.last("id", str),
        exit_timeout_secs=max(0, given.last("exit-timeout-secs", int)),
        exit_on_error=given.last("exit-on-error", bool),
        strict_readiness=given.last("strict-readiness", bool),
        auto_complete_config=_auto_complete(given),
        model_config_name=given.last("model-config-name", str) if "model-config-name" in given else "",
        model_control_mode=given.last("model-control-mode", str),
        repository_poll_secs=max(0, given.last("repository-poll-secs", int)),
        settle_secs=max(0.0, given.last("settle-secs", float)),
        model_namespacing=given.last("model-namespacing", bool),
        load_models=tuple(sorted(set(given.every("load-model", str)))),
        allow_code_upload=given.last("allow-code-upload", bool),
        model_load_thread_count=max(1, given.last("model-load-thread-count", int)),
        model_load_retry_count=max(0, given.last("model-load-retry-count", int)),
        allow_client_shm=given.last("allow-client-shm", bool),
        inline_execution=given.last("inline-execution", bool),
        backend_config=_backend_config(given),
        backend_directory=_backend_directory(given),
        build_environments=given.last("python-environments", str) == "build",
        environment_directory=given.last("python-environment-directory", str)
        if "python-environment-directory" in given
        else "",
        environment_limit_secs=max(1, given.last("python-environment-timeout-secs", int)),
        cloud_cache_directory=given.last("cloud-cache-directory", str),
        repoagent_directory=given.last("repoagent-directory", str),
        gpu_fallback=given.last("gpu-fallback", str) == "cpu",
        cache_config=_cache_config(given, environment),
        cache_directory=given.last("cache-directory", str),
        rate_limit=given.last("rate-limit", str) == "execution_count",
        rate_limit_resources=_rate_limit_resources(given),
        host_policies=_host_policies(given),
        http=http,
        http_restricted=_restrictions(given, "http-restricted-api", "api"),
        http_forward_pattern=given.last("http-header-forward-pattern", str),
        grpc_restricted=_restrictions(given, "grpc-restricted-protocol", "protocol"),
        grpc_forward_pattern=given.last("grpc-header-forward-pattern", str),
        http_max_input_size=given.last("http-max-input-size", int),
        http_max_header_bytes=given.last("http-max-header-bytes", int),
        client_limits=_client_limits(given),
        auth=given.last("auth", str),
        audit_file=given.last("audit-file", str),
        http_drain_secs=max(0.0, given.last("http-drain-secs", float)),
        shutdown_delay_secs=max(0.0, given.last("shutdown-delay-secs", float)),
        grpc=_endpoint(given, "grpc"),
        grpc_options=_grpc(given),
        metrics=_metrics(given, http),
        console=_console(given),
        console_hosts=tuple(name.lower() for name in given.every("console-host", str)),
        measuring=_measuring(given),
        log=_log(given, environment),
        trace=_trace(given, environment),
        grpc_response_delay_secs=_count(environment, "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC"),
        delay_scheduler=_count(environment, "TRITONSERVER_DELAY_SCHEDULER"),
        backlog_delay_scheduler=_count(environment, "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
        warnings=tuple(given.warnings),
    )


def parse(args: Sequence[str], environment: Mapping[str, str]) -> ServerOptions:
    """Reads the words after `serve`.

    A missing repository is no error here: the server reports it as a step of its start (C8).
    """
    given = _Given()
    for flag, text in _scan([*_environment_words(environment), *args]):
        # Flags after it are not read, so they cannot be wrong (C1).
        if flag.name == "help":
            raise HelpRequested
        if flag.name == "version":
            raise VersionRequested
        given.add(flag, text)
    _check_combinations(given)
    _check_support(given, environment)
    options = _compile(given, environment)
    _check_ports(options)
    return options
