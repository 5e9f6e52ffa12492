"""The table of options of `halimede perf`: those of perf_analyzer, and our own. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from halimede.perf import readers as read
from halimede.perf.readers import Row

_TYPE = "Unsupported type provided: '{}'. The available options are "

GROUPS: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {
        "What to measure": (
            Row("-m", "MODEL", "the model; may also be given without -m", read.text("model")),
            Row("-x", "VERSION", "its version (default: the server chooses)", read.text("version")),
            Row(
                "--service-kind",
                "KIND",
                "triton (default), openai, torchserve, tfserving, dynamic_grpc, or triton_c_api: a server of its own",
                read.choice(
                    "kind",
                    ("triton", "tfserving", "torchserve", "triton_c_api", "openai", "dynamic_grpc"),
                    _TYPE + "'triton', 'tfserving', 'torchserve', 'openai', 'dynamic_grpc', or 'triton_c_api'.",
                ),
            ),
            Row(
                "-u",
                "HOST:PORT",
                "the server (localhost:8000, gRPC localhost:8001), or unix:PATH",
                read.text("url"),
            ),
            Row("-i", "PROTOCOL", "http (default) or grpc", read.protocol),
            Row("--endpoint", "PATH", "openai: where requests go, such as v1/chat/completions", read.text("endpoint")),
            Row("--grpc-method", "PKG.SVC/METHOD", "dynamic_grpc: the method", read.text("grpc_method")),
            Row("--proto", "FILE", "dynamic_grpc: the .proto file that has it", read.text("proto")),
            Row("--model-signature-name", "NAME", "tfserving: the signature (serving_default)", read.text("signature")),
            Row("--triton-server-directory", "DIR", "accepted; nothing reads it", read.text("server_directory")),
            Row("--model-repository", "DIR", "triton_c_api: the model repository", read.append("model_repositories")),
            Row(
                "--bls-composing-models",
                "NAME[:VERSION],...",
                "models that this one calls, to report too",
                read.composing,
            ),
        ),
        "Load": (
            Row(
                "--concurrency-range",
                "START:END:STEP",
                "requests in flight (1); with END 0 until --latency-threshold is passed",
                read.range_reader("concurrency", read.integer),
            ),
            Row(
                "--request-rate-range",
                "START:END:STEP",
                "requests per second, sent when they are due, however long answers take",
                read.range_reader("rate", read.number),
            ),
            Row(
                "--request-distribution",
                "NAME",
                "constant (default) or poisson gaps between requests",
                read.choice(
                    "distribution",
                    ("poisson", "constant"),
                    "Unsupported type provided: '{}'. Choices are 'posson' or 'constant'.",
                ),
            ),
            Row(
                "--request-intervals",
                "FILE",
                "gaps in microseconds, one on a line, over and over",
                read.existing("intervals_file", "The value must be a valid file path"),
            ),
            Row(
                "--periodic-concurrency-range",
                "START:END:STEP",
                "adds STEP requests in flight again and again",
                read.periodic,
            ),
            Row(
                "--request-period",
                "N",
                "responses of each request after which --periodic-concurrency-range adds more (10)",
                read.at_least("request_period", 1, "The value must be > 0"),
            ),
            Row(
                "--fixed-schedule",
                "",
                "send each request at the `timestamp` (ms) in the input data",
                read.switch("fixed_schedule"),
            ),
            Row(
                "--session-concurrency",
                "N",
                "openai: conversations at a time",
                read.at_least("session_concurrency", 1, "Session concurrency must be > 0."),
            ),
            Row(
                "--async -a",
                "",
                "accepted: requests never block each other here; changes what counts as stable",
                read.switch("asynchronous"),
            ),
            Row("--sync", "", "the opposite of --async, for sequence models", read.switch("forced_sync")),
            Row("--streaming", "", "send requests over gRPC streams", read.switch("streaming")),
            Row(
                "--max-threads", "N", "accepted; load does not come from threads here", read.at_least("max_threads", 1)
            ),
            Row(
                "--processes",
                "N",
                "processes that make the load (default: one, more if one is not enough)",
                read.at_least("processes", 1),
            ),
            Row(
                "--binary-search",
                "",
                "search the range for the highest level within --latency-threshold",
                read.switch("binary_search"),
            ),
            Row(
                "--latency-threshold -l",
                "MS",
                "stop when the latency passes this",
                read.at_least("latency_threshold", 0, "The value must be >= 0 msecs."),
            ),
        ),
        "Measurement": (
            Row(
                "--measurement-mode",
                "MODE",
                "time_windows (default) or count_windows",
                read.choice("mode", ("time_windows", "count_windows"), _TYPE + "'time_windows' or 'count_windows'."),
            ),
            Row(
                "--measurement-interval -p",
                "MS",
                "length of a window (5000)",
                read.at_least("interval", 1, "The value must be > 0 msec."),
            ),
            Row(
                "--measurement-request-count",
                "N",
                "least requests of a window, with count_windows (50)",
                read.at_least("window_requests", 1),
            ),
            Row("--stability-percentage -s", "PERCENT", "how much three windows may differ (10)", read.stability),
            Row("--max-trials -r", "N", "windows until the level is given up (10)", read.at_least("max_trials", 1)),
            Row(
                "--percentile",
                "P",
                "judge by this percentile instead of the mean",
                read.at_least("percentile", -(1 << 62)),
            ),
            Row("--request-count", "N", "send exactly this many requests", read.at_least("request_count", 0)),
            Row(
                "--warmup-request-count",
                "N",
                "send this many requests first, which do not count",
                read.at_least("warmup_requests", 0, "The value must be >= 0."),
            ),
            Row("--seconds", "S", "length of a run for which no load is chosen (20)", read.seconds),
            Row("--rounds", "N", "measure everything this often, for the noise", read.at_least("rounds", 1)),
            Row("--enable-mpi", "", "accepted by perf_analyzer; refused here", read.switch("mpi")),
        ),
        "Sequences": (
            Row(
                "--num-of-sequences",
                "N",
                "sequences at a time, with --request-rate-range (4)",
                read.at_least("sequences", 1),
            ),
            Row("--sequence-length", "N", "requests of a sequence (20)", read.sequence_length),
            Row(
                "--sequence-length-variation",
                "PERCENT",
                "how much the length varies (20)",
                lambda store, label, text: store.__setitem__("sequence_length_variation", read.number(text)),
            ),
            Row("--sequence-id-range", "START:END", "correlation ids (from 1 on)", read.ids),
            Row(
                "--serial-sequences",
                "",
                "at most one request in flight for each sequence",
                read.switch("serial_sequences"),
            ),
        ),
        "Input data": (
            Row("-b", "N", "batch size (1)", read.batch),
            Row(
                "--input-data",
                "random|zero|PATH",
                "a JSON file, or a directory with a file per input; may be repeated",
                read.input_data,
            ),
            Row("--data-directory", "DIR", "the same, deprecated", read.append("data_paths")),
            Row("-z", "", "the same as --input-data zero, deprecated", read.switch("zero_input")),
            Row("--shape", "NAME:D1,D2", "shape of an input with variable dimensions; may be repeated", read.shape),
            Row(
                "--string-length",
                "N",
                "characters of random strings (128)",
                read.at_least("string_length", 1, "The value must be > 0"),
            ),
            Row("--string-data", "TEXT", "the strings of all inputs of strings", read.text("string_data")),
            Row(
                "--shared-memory",
                "KIND",
                "none (default), system or cuda",
                read.choice("shared_memory", ("none", "system", "cuda"), _TYPE + "'system', 'cuda', or 'none'."),
            ),
            Row(
                "--output-shared-memory-size",
                "BYTES",
                "for each output of variable size (102400)",
                read.at_least("output_shared_memory", 0, "The value must be >= 0."),
            ),
            Row(
                "--input-tensor-format",
                "FORMAT",
                "HTTP: binary (default) or json",
                read.choice("input_format", ("binary", "json"), _TYPE + "'binary' or 'json'."),
            ),
            Row(
                "--output-tensor-format",
                "FORMAT",
                "HTTP: binary (default) or json",
                read.choice("output_format", ("binary", "json"), _TYPE + "'binary' or 'json'."),
            ),
            Row(
                "--request-parameter",
                "NAME:VALUE:TYPE",
                "a parameter of each request; TYPE is bool, int or string",
                read.parameter,
            ),
        ),
        "Connection": (
            Row("-H", "NAME:VALUE", "an HTTP header of each request; may be repeated", read.header),
            Row("--ssl-grpc-use-ssl", "", "TLS with gRPC", read.use_ssl),
            Row("--ssl-grpc-root-certifications-file", "FILE", "authorities (PEM)", read.tls_file("grpc_root")),
            Row("--ssl-grpc-private-key-file", "FILE", "the client's key (PEM)", read.tls_file("grpc_key")),
            Row(
                "--ssl-grpc-certificate-chain-file",
                "FILE",
                "the client's certificate (PEM)",
                read.tls_file("grpc_chain"),
            ),
            Row(
                "--ssl-https-verify-peer",
                "0|1",
                "check the server's certificate (1)",
                read.tls_number("verify_peer", 1, "The value must be either 0 or 1."),
            ),
            Row(
                "--ssl-https-verify-host",
                "0|1|2",
                "check the server's name (2)",
                read.tls_number("verify_host", 2, "The value must be either 0, 1, or 2."),
            ),
            Row("--ssl-https-ca-certificates-file", "FILE", "authorities", read.tls_file("https_root")),
            Row(
                "--ssl-https-client-certificate-file",
                "FILE",
                "the client's certificate",
                read.tls_file("https_certificate"),
            ),
            Row(
                "--ssl-https-client-certificate-type",
                "PEM|DER",
                "its form (PEM)",
                read.tls_type("https_certificate_type"),
            ),
            Row("--ssl-https-private-key-file", "FILE", "the client's key", read.tls_file("https_key")),
            Row("--ssl-https-private-key-type", "PEM|DER", "its form (PEM)", read.tls_type("https_key_type")),
            Row(
                "--grpc-compression-algorithm",
                "NAME",
                "none (default), gzip or deflate",
                read.choice("compression", ("none", "gzip", "deflate"), _TYPE + "'gzip', 'deflate', or 'none'."),
            ),
        ),
        "Server": (
            Row("--trace-level", "LEVEL", "OFF, TIMESTAMPS or TENSORS", read.trace_level),
            Row("--trace-rate", "N", "trace one of N requests (1000)", read.trace("trace_rate", None, "")),
            Row(
                "--trace-count",
                "N",
                "traces at most (-1: any number)",
                read.trace("trace_count", -1, "The value must be >= 0 or set to -1 (default)."),
            ),
            Row(
                "--log-frequency",
                "N",
                "traces in each file (0: all)",
                read.trace("log_frequency", 0, "The value must be >= 0."),
            ),
            Row("--collect-metrics", "", "collect the server's GPU metrics", read.switch("collect_metrics")),
            Row("--metrics-url", "URL", "the address of the metrics (HOST:8002/metrics)", read.text("metrics_url")),
            Row("--metrics-interval", "MS", "how often to ask (1000)", read.metrics_interval),
        ),
        "Results": (
            Row("-f", "FILE", "write a CSV file", read.text("csv_file")),
            Row("--verbose-csv", "", "more columns in it", read.switch("verbose_csv")),
            Row("--profile-export-file", "FILE", "write every request with its data and times as JSON", read.export),
            Row("--json", "FILE", "write all results as JSON (- for standard output)", read.text("json_file")),
            Row("--plot", "FILE", "draw them: .png, .svg or .html; may be repeated", read.append("plots")),
            Row("--compare", "A.json", "compare two files of --json: --compare A.json B.json", read.compare),
            Row("--live", "", "show the running measurement (default on a terminal)", read.switch(live=True)),
            Row("--no-live", "", "do not", read.switch(live=False)),
            Row("--verbose -v", "", "say more; twice for still more", read.verbose),
            Row("--version", "", "print the version", read.version),
            Row("--help -h", "", "print this", read.help_reader),
        ),
        "Deprecated": (
            Row("-t", "N", "the same as --concurrency-range N", read.old_concurrency),
            Row("-c", "N", "with -d: the highest concurrency", read.old_maximum),
            Row("-d", "", "search concurrencies from -t to -c", read.switch("old_search")),
        ),
    }
)
"""The options in the order of the help."""

ROWS: tuple[Row, ...] = tuple(row for rows in GROUPS.values() for row in rows)
LONG = {row.name: row for row in ROWS if row.name}
SHORT = {row.short: row for row in ROWS if row.short}
