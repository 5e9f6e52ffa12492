"""The table of flags as a whole: what holds for every row, and the usage text that is made from it."""

import re

import pytest

from halimede.errors import Unsupported
from halimede.options import parse, usage
from halimede.options.flags import FLAGS, GROUPS, Support
from halimede.options.kinds import SWITCH

# What `tritonserver --help` of 2.51 lists.
_REAL = """
help id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-store model-repository
exit-on-error disable-auto-complete-config strict-readiness model-control-mode repository-poll-secs load-model
model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access allow-http
http-address http-port reuse-http-port http-header-forward-pattern http-thread-count http-restricted-api allow-grpc
grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-allocation-pool-size grpc-use-ssl
grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level
grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
grpc-max-connection-age-grace grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range
sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config
backend-directory backend-config repoagent-directory cache-config cache-directory rate-limit rate-limit-resource
pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size min-supported-compute-capability
buffer-manager-thread-count host-policy model-load-gpu-limit strict-model-config response-cache-byte-size trace-file
trace-level trace-rate trace-count trace-log-frequency
"""


def test_every_flag_of_triton_is_known() -> None:
    assert set(_REAL.split()) - set(FLAGS) == set()


def test_names_are_unique_across_groups() -> None:
    assert len(FLAGS) == sum(len(flags) for flags in GROUPS.values())


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.default])
def test_flag_at_its_default_changes_nothing(name: str) -> None:
    given, absent = parse([f"--{name}={FLAGS[name].default}"], {}), parse([], {})
    said = (FLAGS[name].deprecated,) if FLAGS[name].deprecated else ()
    assert (given.warnings, given.http, given.grpc, given.metrics) == (said, absent.http, absent.grpc, absent.metrics)


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.support is Support.PLANNED])
def test_planned_flag_is_refused_for_another_value(name: str) -> None:
    other = {
        "boolean": "true",
        "integer": "5",
        "off|timestamps|tensors": "tensors",
        "none|low|medium|high": "low",
        "gpu:fraction": "0:0.5",
    }
    label = FLAGS[name].kind.label
    value = other.get(label, "x") if "|" not in label or label in other else label.split("|")[1]
    if name == "rate-limit":
        value = "execution_count"
    mode = ["--model-control-mode=explicit"] if name == "load-model" else []
    with pytest.raises(Unsupported, match="is not supported yet"):
        parse([*mode, f"--{name}={value}"], {})


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.support is Support.INERT])
def test_inert_flag_says_why_it_has_no_effect(name: str) -> None:
    flag = FLAGS[name]
    known = {"boolean": "true", "gpu:bytes": "0:77", "low-high": "7-77"}
    value = "false" if flag.default == "true" else known.get(flag.kind.label, "77")
    assert parse([f"--{name}={value}"], {}).warnings == (f"'--{name}' has no effect: {flag.note}.",)
    assert flag.note


def test_usage_lists_every_flag_once_with_its_value() -> None:
    text = usage(width=1000)
    for flag in FLAGS.values():
        label = "" if flag.kind is SWITCH else f" <{flag.kind.label}>"
        assert len(re.findall(rf"^  --{flag.name}{re.escape(label)}(?: {{2,}}\S|$)", text, re.MULTILINE)) == 1


def test_usage_begins_with_what_is_used_most() -> None:
    text = usage()
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [
        *("Used most", *[title for title, flags in GROUPS.items() if title and title in titles]),
        *("Not supported yet", "Accepted without effect"),
    ]
    assert text.startswith("Usage: halimede serve --model-repository=DIRECTORY [options]\n")
    assert text.partition("Used most:\n")[2].startswith("  --model-repository <string>     Directory of a model rep")
    assert usage("tritonserver").startswith("Usage: tritonserver [options]\n")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_usage_shows_defaults_and_what_has_no_effect(width: int) -> None:
    text = usage(width=width)
    plain = " ".join(text.split())
    assert "--http-port <integer> Port to listen on for HTTP. (default 8000)" in plain
    assert (
        "Threads that handle HTTP requests. (default 8; no effect: connections are served by one event loop)" in plain
    )
    assert all(len(line) <= max(width, 70) or len(line.split()) <= 2 for line in text.splitlines())
