"""The command line of `halimede perf`: its help, its reading, and what does not go together. Pure, except
that files are looked up.
"""

import getopt
import re
from collections.abc import Sequence
from dataclasses import fields

from halimede.options import suggestion
from halimede.perf.flags import GROUPS, LONG, ROWS, SHORT
from halimede.perf.options import (
    NO_LIMIT,
    Options,
    Range,
    Tls,
    UsageError,
)
from halimede.perf.readers import Store, failed


def help_text(width: int = 100) -> str:
    """The help, at most `width` characters wide."""
    import textwrap

    lines = ["Usage: halimede perf MODEL [options]", ""]
    lines += textwrap.wrap(
        "Makes load on a server and measures throughput and latency. With nothing but a model it finds in 20 seconds "
        "how much the server can take, and says so in one sentence. The options, texts and files of perf_analyzer "
        "work as they do there.",
        width,
    )
    for title, rows in GROUPS.items():
        lines += ["", f"{title}:"]
        for row in rows:
            names = ", ".join(filter(None, (f"-{row.short}" if row.short else "", f"--{row.name}" if row.name else "")))
            head = f"  {names} {row.value}".rstrip()
            if len(head) > 30:
                lines += [head, *textwrap.wrap(row.help, width, initial_indent=" " * 32, subsequent_indent=" " * 32)]
            else:
                lines += textwrap.wrap(row.help, width, initial_indent=f"{head:32}", subsequent_indent=" " * 32)
    return "\n".join(lines) + "\n"


def parse(words: Sequence[str]) -> tuple[Options, list[str]]:
    """The options of a command line, and warnings to print.

    Raises UsageError, HelpRequested or VersionRequested.
    """
    shorts = "".join(row.short + (":" if row.value else "") for row in ROWS if row.short)
    longs = [row.name + ("=" if row.value else "") for row in ROWS if row.name]
    words = list(words)
    try:
        given, rest = getopt.gnu_getopt(words, shorts, longs)
    except getopt.GetoptError as error:
        raise UsageError(_getopt_text(error)) from None
    store: Store = {}
    for label, text in given:
        row = LONG[label[2:]] if label.startswith("--") else SHORT[label[1:]]
        try:
            row.read(store, row.shown, text)
        except ValueError:
            raise failed(label, f"Invalid value provided: {text}") from None
    _take_positional(store, rest)
    warnings = list(store.pop("warnings", ()))
    options = _options(store)
    if not options.compare:
        verify(options, warnings)
    return options, warnings


def _getopt_text(error: getopt.GetoptError) -> str:
    """Names a wrong option as perf_analyzer does (X26)."""
    word = error.opt
    if "argument" in error.msg:
        return f"option {'--' if len(word) > 1 else '-'}{word} requires a value"
    if "unique" in error.msg:
        return f"option --{word} is ambiguous"
    if len(word) == 1:
        return f"Invalid short option '-{word}'"
    return f"Invalid long option '--{word}'" + suggestion(word, tuple(LONG), "--{}")


def _take_positional(store: Store, rest: Sequence[str]) -> None:
    """A word without an option is the model, or the second file of --compare."""
    rest = list(rest)
    if "compare" in store:
        store["compare"] = (*store["compare"], *rest)
        if len(store["compare"]) != 2:
            raise UsageError("--compare needs two files: --compare A.json B.json")
        return
    if rest and "model" not in store:
        store["model"] = rest.pop(0)
        store["positional"] = True
    if rest:
        raise UsageError(f"unexpected argument: {rest[0]}")


_LOADS = ("concurrency", "rate", "intervals_file", "periodic", "fixed_schedule", "session_concurrency")


def _options(store: Store) -> Options:
    old, maximum = store.pop("old_concurrency", None), store.pop("old_maximum", None)
    search = store.pop("old_search", False)
    if old is not None or maximum is not None or search:
        if "concurrency" in store:
            raise UsageError("Cannot use deprecated options with --concurrency-range.")
        if "rate" in store:
            raise UsageError("Cannot use concurrency options with --request-rate-range.")
        if "intervals_file" in store:
            raise UsageError("Cannot use deprecated options with --request-intervals.")
        start = 1 if old is None else old
        store["concurrency"] = Range(start, (maximum or 0) if search else start)
    positional = store.pop("positional", False)
    chosen = any(store.get(load) for load in _LOADS) or store.get("request_count")
    store["automatic"] = bool(positional and not chosen)
    store["tls"] = Tls(**store.get("tls", {}))
    if store.get("request_count"):
        store["mode"] = "count_windows"
        store["window_requests"] = store["request_count"]
    if store.get("kind") in ("dynamic_grpc", "triton_c_api"):
        store["protocol"] = "grpc"
    if store.get("streaming") and not store.get("forced_sync"):
        store["asynchronous"] = True
    known = {each.name for each in fields(Options)}
    return Options(**{name: value for name, value in store.items() if name in known})


def verify(options: Options, warnings: list[str]) -> None:
    """Checks options against each other, in the order of perf_analyzer. Raises UsageError with its texts."""
    for holds, text in _conflicts(options):
        if holds:
            raise UsageError(text)
    if options.sequence_id_start == 0:
        warnings.append(
            "WARNING: using an invalid start sequence id. Perf Analyzer will use default value if it is measuring on "
            "sequence model."
        )


def _conflicts(o: Options) -> list[tuple[bool, str]]:
    levels, rates = o.concurrency or Range(), o.rate or Range()
    modes = {
        "concurrency-range": o.concurrency is not None,
        "periodic-concurrency-range": o.periodic is not None,
        "request-rate-range": o.rate is not None,
        "request-intervals": bool(o.intervals_file),
        "fixed-schedule": o.fixed_schedule,
        "session-concurrency": bool(o.session_concurrency),
    }
    used = [name for name, is_used in modes.items() if is_used]
    endless = NO_LIMIT in (levels.end, rates.end)
    searching = [each for each in (o.concurrency, o.rate) if each is not None]
    several = any(each.start < each.end for each in searching)
    return [
        (not o.model and o.kind != "dynamic_grpc", "Failed to parse -m (model name). The value must be specified."),
        (levels.start <= 0, "The start of the search range must be > 0"),
        (rates.start <= 0, "Failed to parse --request-rate-range. The start of the search range must be > 0."),
        (
            o.streaming and o.protocol != "grpc" and o.kind not in ("triton_c_api", "openai"),
            "Streaming is only allowed with gRPC protocol and Triton C API.",
        ),
        (
            o.compression != "none" and o.protocol != "grpc",
            "Using compression algorithm is only allowed with gRPC protocol.",
        ),
        (
            o.sequence_length_variation < 0,
            "Failed to parse --sequence-length-variation. The value must be >= 0.0.",
        ),
        (
            o.percentile != -1 and not 1 <= o.percentile <= 99,
            "Failed to parse --percentile. The value must be -1 for not reporting or in range (0, 100).",
        ),
        (o.zero_input and bool(o.data_paths), "The -z flag cannot be set when --data-directory is provided."),
        (o.asynchronous and o.forced_sync, "Cannot specify --async and --sync simultaneously."),
        (
            len(used) > 1,
            "Cannot use both {} and {} inference load modes.".format(*(f"--{name}" for name in [*used, "", ""][:2])),
        ),
        (
            o.periodic is not None and not o.streaming,
            "The --periodic-concurrency-range option requires bi-directional gRPC streaming.",
        ),
        (
            o.periodic is not None and not o.export_file,
            "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
        ),
        (
            bool(o.parameters) and o.protocol != "grpc",
            "The --request-parameter option is currently only supported by gRPC protocol.",
        ),
        (
            endless and o.latency_threshold == NO_LIMIT,
            "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously",
        ),
        (endless and o.binary_search, "The end of the range can not be 0 (or 0.0) for binary search mode."),
        (
            o.binary_search and o.latency_threshold == NO_LIMIT,
            "The --latency-threshold cannot be 0 for binary search mode.",
        ),
        (
            o.binary_search and (levels.end < levels.start or rates.end < rates.start),
            "The end of the range can not be less than start of the range for binary search mode.",
        ),
        (
            bool(o.warmup_requests) and several,
            f"--warmup-request-count not supported with multiple {'concurrency' if o.concurrency else 'request rate'} "
            "values in one run",
        ),
        (
            bool(o.request_count and o.concurrency) and o.request_count < levels.start,
            "--request-count can not be less than concurrency",
        ),
        (
            bool(o.request_count and o.rate) and o.request_count < int(rates.start),
            "--request-count can not be less than request rate",
        ),
        (
            bool(o.request_count) and several,
            f"--request-count not supported with multiple {'concurrency' if o.concurrency else 'request rate'} values "
            "in one run",
        ),
        (bool(o.request_count) and o.fixed_schedule, "Cannot use --request-count with --fixed-schedule."),
        *_conflicts_of_kind(o),
    ]


def _conflicts_of_kind(o: Options) -> list[tuple[bool, str]]:
    tf, openai, c_api = o.kind == "tfserving", o.kind == "openai", o.kind == "triton_c_api"
    dynamic = o.kind == "dynamic_grpc"
    return [
        (tf and o.protocol != "grpc", "perf_analyzer supports only grpc protocol for TensorFlow Serving."),
        (tf and o.streaming, "perf_analyzer does not support streaming for TensorFlow Serving."),
        (tf and o.asynchronous, "perf_analyzer does not support async API for TensorFlow Serving."),
        (
            o.kind == "torchserve" and not o.data_paths,
            "--input-data should be provided with a json file with input data for torchserve.",
        ),
        (
            c_api and not o.model_repositories,
            "--model-repository should not be empty when using service-kind=triton_c_api.",
        ),
        (
            c_api and o.asynchronous and o.streaming and o.shared_memory != "none",
            "Cannot use --shared-memory=system or --shared-memory=cuda with --service-kind=triton_c_api and --async "
            "and --streaming.",
        ),
        (openai and not o.data_paths, "Must supply --input-data for OpenAI service kind."),
        (
            openai and not o.endpoint,
            'Must supply --endpoint for OpenAI service kind. For example, "v1/chat/completions".',
        ),
        (openai and not o.asynchronous, "Only async mode is currently supported for OpenAI service-kind"),
        (openai and o.batch_size != 1, "Batching is not currently supported with OpenAI service-kind"),
        (
            dynamic and not re.fullmatch(r"[\w.]+/\w+", o.grpc_method),
            'Must supply --grpc-method for dynamic gRPC service kind, as "package.Service/Method".',
        ),
        (dynamic and not o.data_paths, "Must supply --input-data for dynamic gRPC service kind."),
        (dynamic and o.batch_size != 1, "Batching is not supported with dynamic gRPC service kind"),
        (
            o.collect_metrics and o.kind != "triton",
            "Server-side metric collection is only supported with Triton client backend.",
        ),
        (
            bool(o.metrics_url) and not o.collect_metrics,
            "Must specify --collect-metrics when using the --metrics-url option.",
        ),
        (
            o.metrics_interval_given and not o.collect_metrics,
            "Must specify --collect-metrics when using the --metrics-interval option.",
        ),
        (
            bool(o.session_concurrency) and not openai,
            "Session concurrency mode is only supported with OpenAI service kind.",
        ),
    ]
