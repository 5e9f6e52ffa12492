"""The options of `halimede analyze`, which are Model Analyzer's, in one table (X34, X46, X47). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from halimede.analyze.noise import MOST_SECONDS


@dataclass(frozen=True, slots=True)
class Field:
    """An option. `kind` says what its value may be: text, int, float, bool, words (a list of strings), numbers (a list,
    a range or a comma string), or map. One without a help text is for YAML only. `note` says why it has no effect."""

    name: str
    kind: str
    default: Any = None
    help: str = ""
    short: str = ""
    commands: tuple[str, ...] = ("profile",)
    choices: tuple[str, ...] = ()
    note: str = ""
    group: str = "Other"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


BOTH = ("profile", "report")
_IN_PROCESS = "load is made by halimede perf in this process"
_NO_DOCKER = "no container is started"
_NO_IDLE = "the idle server is not measured"
_ONE_BY_ONE = "it counts for models under load at the same time"
_NO_DCGM = "figures of GPUs come from the server's metrics"

INFERENCE_FIELDS = (
    "model_name", "batch_size", "concurrency", "model_config_path", "instance_group", "max_batch_size",
    "satisfies_constraints", "perf_throughput", "perf_latency_p99",
)  # fmt: skip
GPU_FIELDS = (
    "model_name", "gpu_uuid", "batch_size", "concurrency", "model_config_path", "instance_group",
    "satisfies_constraints", "gpu_used_memory", "gpu_utilization", "gpu_power_usage",
)  # fmt: skip
SERVER_FIELDS = ("model_name", "gpu_uuid", "gpu_used_memory", "gpu_utilization", "gpu_power_usage")

_ROWS = (
    (
        "What",
        (
            Field("model_repository", "text", "", "the folder with the models", "m"),
            Field(
                "profile_models", "words", (), "the models to tune, with commas between them; or words without a flag"
            ),
            Field("bls_composing_models", "words", (), "models that a model calls by itself, which are tuned with it"),
            Field("ensemble_composing_models", "words", (), note="the configuration of an ensemble names its members"),
            Field("cpu_only_composing_models", "words", (), "called models that are to run on CPUs"),
            Field("config_file", "text", "", "a YAML file with any of these options", "f", BOTH),
            Field("cpu_only", "bool", False),
            Field("apply", "bool", False, "write the best configuration into the config.pbtxt, and keep its comments"),
        ),
    ),
    (
        "Goal",
        (
            Field("latency_budget", "float", 0.0, "the largest p99 in milliseconds"),
            Field("min_throughput", "float", 0.0, "the least inferences per second"),
            Field("objectives", "map", None),
            Field("constraints", "map", None),
            Field("weighting", "int", 1, note=_ONE_BY_ONE),
        ),
    ),
    (
        "Search",
        (
            Field(
                "run_config_search_mode",
                "text",
                "adaptive",
                "how to search",
                choices=("adaptive", "brute", "quick", "optuna"),
            ),
            Field("run_config_search_disable", "bool", False, "measure only what is listed"),
            Field("run_config_search_min_concurrency", "int", 1, "the fewest clients"),
            Field("run_config_search_max_concurrency", "int", 1024, "the most clients"),
            Field("run_config_search_min_request_rate", "int", 16, "the lowest rate"),
            Field("run_config_search_max_request_rate", "int", 8192, "the highest rate"),
            Field("run_config_search_min_instance_count", "int", 1, "the fewest instances"),
            Field("run_config_search_max_instance_count", "int", 5, "the most instances"),
            Field("run_config_search_min_model_batch_size", "int", 1, "the smallest max_batch_size"),
            Field("run_config_search_max_model_batch_size", "int", 128, "the largest max_batch_size"),
            Field(
                "run_config_search_max_binary_search_steps",
                "int",
                5,
                "steps between a good load and one that is not",
            ),
            Field(
                "run_config_search_queue_delays",
                "numbers",
                None,
                "queue delays to try, in microseconds (adaptive: 0,200,1000; others: none)",
            ),
            Field("measurement_seconds", "float", MOST_SECONDS, "the longest time for a measurement, if it is noisy"),
            Field("request_rate_search_enable", "bool", False, "search request rates instead of numbers of clients"),
            Field(
                "concurrency_sweep_disable",
                "bool",
                False,
                "quick and optuna: no other loads for the best configurations",
            ),
            Field("early_exit_enable", "bool", False, note="more load is never tried after it gained nothing"),
            Field("concurrency", "numbers", None, "numbers of clients to measure: 1,2,4 or start:stop:step", "c"),
            Field("request_rate", "numbers", None, "request rates to measure"),
            Field("batch_sizes", "numbers", (1,), "batch sizes of requests", "b"),
            Field("min_percentage_of_search_space", "int", 5, "optuna: the least share of the space that is tried"),
            Field("max_percentage_of_search_space", "int", 10, "optuna: the largest share"),
            Field("optuna_min_trials", "int", 0, "optuna: the fewest trials, instead of a share"),
            Field("optuna_max_trials", "int", 0, "optuna: the most trials"),
            Field("optuna_early_exit_threshold", "int", 10, "optuna: trials without a gain after which it ends"),
            Field("use_concurrency_formula", "bool", False, "optuna: clients follow from the configuration"),
            Field(
                "run_config_profile_models_concurrently_enable",
                "bool",
                False,
                "put load on all models at the same time, and tune them together",
            ),
        ),
    ),
    (
        "Server",
        (
            Field(
                "triton_launch_mode",
                "text",
                "",
                "local, or c_api: start a server; remote: use a running one (local, if there is a model repository)",
                choices=("local", "remote", "docker", "c_api"),
            ),
            Field("client_protocol", "text", "grpc", "the protocol of the load", choices=("http", "grpc")),
            Field(
                "triton_http_endpoint",
                "text",
                "",
                "host:port of the server for HTTP (localhost:8000; a free port in local mode)",
            ),
            Field("triton_grpc_endpoint", "text", "", "host:port for gRPC (localhost:8001)"),
            Field("triton_metrics_url", "text", "", "URL of the metrics (http://localhost:8002/metrics)"),
            Field("triton_server_path", "text", "", "the server to start in local mode (halimede serve)"),
            Field("triton_output_path", "text", "", "the file for the log of a started server"),
            Field("triton_server_flags", "map", None),
            Field("triton_server_environment", "map", None),
            Field(
                "reload_model_disable",
                "bool",
                False,
                "remote: do not load or unload models; measures one configuration",
            ),
            Field("perf_analyzer_flags", "map", None),
            Field(
                "genai_perf_flags",
                "map",
                None,
                note="language models are measured by halimede perf --service-kind openai",
            ),
            Field("collect_cpu_metrics", "bool", False, note="the memory of the server is always reported"),
            Field("client_max_retries", "int", 50, "", "r", note="a question to the server is asked once"),
            Field("gpus", "words", ("all",), note=_NO_DCGM),
            Field("monitoring_interval", "float", 1.0, "seconds between two looks at the metrics", "i"),
            Field("duration_seconds", "int", 3, "", "d", note=_NO_IDLE),
        ),
    ),
    (
        "Files",
        (
            Field("export_path", "text", ".", "the folder for results and reports", "e", BOTH),
            Field("checkpoint_directory", "text", "checkpoints", "the folder with the measurements", "s", BOTH),
            Field("output_model_repository_path", "text", "", "a new folder for all measured configurations"),
            Field("override_output_model_repository", "bool", False, "replace that folder"),
            Field("filename_model_inference", "text", "metrics-model-inference.csv", "the file with the measurements"),
            Field("filename_model_gpu", "text", "metrics-model-gpu.csv", "the file with the figures of GPUs"),
            Field("filename_server_only", "text", "metrics-server-only.csv", note=_NO_IDLE),
            Field("inference_output_fields", "words", INFERENCE_FIELDS, "columns of the measurements"),
            Field("gpu_output_fields", "words", GPU_FIELDS, "columns of the figures of GPUs"),
            Field("server_output_fields", "words", SERVER_FIELDS, note=_NO_IDLE),
            Field("num_configs_per_model", "int", 3, "how many configurations of a model are shown"),
            Field("num_top_model_configs", "int", 0, "how many configurations of all models together are shown"),
            Field("skip_summary_reports", "bool", False, "write no summary"),
            Field("skip_detailed_reports", "bool", False, "write no details of the best configurations"),
            Field(
                "always_report_gpu_metrics",
                "bool",
                False,
                commands=BOTH,
                note="figures of GPUs are written if there are any",
            ),
            Field(
                "report_model_configs",
                "words",
                (),
                "the configurations to report on, such as digits_config_3; or words without a flag",
                "n",
                ("report",),
            ),
            Field("output_formats", "words", ("pdf", "html"), "files of reports: pdf, html", "o", BOTH),
            Field("plots", "map", None, commands=BOTH),
        ),
    ),
    (
        "Accepted, without an effect here",
        (
            Field("perf_analyzer_path", "text", "", "", note=_IN_PROCESS),
            Field("perf_analyzer_timeout", "int", 0, "", note=_IN_PROCESS),
            Field("perf_analyzer_cpu_util", "float", 0.0, "", note=_IN_PROCESS),
            Field(
                "perf_analyzer_max_auto_adjusts", "int", 0, "", note="a measurement lasts as long as its noise requires"
            ),
            Field("perf_output", "bool", False, "", note=_IN_PROCESS),
            Field("perf_output_path", "text", "", "", note=_IN_PROCESS),
            Field("triton_docker_image", "text", "", "", note=_NO_DOCKER),
            Field("triton_docker_mounts", "words", (), "", note=_NO_DOCKER),
            Field("triton_docker_labels", "map", None, "", note=_NO_DOCKER),
            Field("triton_docker_args", "map", None, "", note=_NO_DOCKER),
            Field("triton_docker_shm_size", "text", "", "", note=_NO_DOCKER),
            Field("triton_install_path", "text", "", "", note="the server runs in a process of its own"),
            Field(
                "model_type",
                "text",
                "generic",
                "",
                choices=("generic", "LLM"),
                note="language models are measured by halimede perf --service-kind openai",
            ),
            Field("dcgm_disable", "bool", False, "", commands=BOTH, note=_NO_DCGM),
        ),
    ),
)

FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        row.name: Field(
            row.name, row.kind, row.default, row.help, row.short, row.commands, row.choices, row.note, group
        )
        for group, rows in _ROWS
        for row in rows
    }
)
MODEL_FIELDS = (
    "cpu_only", "parameters", "model_config_parameters", "objectives", "constraints", "weighting",
    "perf_analyzer_flags", "genai_perf_flags", "triton_server_flags", "triton_server_environment",
    "triton_docker_args",
    "run_config_search_min_instance_count", "run_config_search_max_instance_count",
    "run_config_search_min_model_batch_size", "run_config_search_max_model_batch_size",
)  # fmt: skip
"""What a model under `profile_models` may have of its own."""
UNUSED_OF_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "weighting": _ONE_BY_ONE,
        **dict.fromkeys(
            ("genai_perf_flags", "triton_server_flags", "triton_server_environment", "triton_docker_args"),
            "one server serves all models",
        ),
    }
)
"""Those of them that have no effect, and why. `weighting` has one for models that get load together."""
PARAMETER_FIELDS = ("batch_sizes", "concurrency", "request_rate")
