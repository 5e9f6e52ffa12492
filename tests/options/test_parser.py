"""Command lines and environments against the options, or the error in the real server's words, that they must give."""

from collections.abc import Mapping, Sequence

import pytest

from halimede.errors import Error, Invalid, Unsupported
from halimede.options import Endpoint, HelpRequested, LogOptions, ServerOptions, VersionRequested, parse

_RESOURCE_FORM = (
    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'"
)


def read(*args: str, environment: Mapping[str, str] | None = None) -> ServerOptions:
    return parse(args, environment or {})


def refusal(*args: str, environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(Error) as caught:
        read(*args, environment=environment)
    return str(caught.value)


def test_empty_line_gives_the_defaults_of_the_values() -> None:
    assert read() == ServerOptions()


def test_flags_of_the_server_reach_their_fields() -> None:
    options = read(
        "--id=abc", "--exit-timeout-secs=5", "--exit-on-error=false", "--strict-readiness=false",
        "--model-config-name=h100", "--model-load-thread-count=2", "--model-load-retry-count=3",
        "--allow-client-shm=true", "--http-max-input-size=1000", "--model-control-mode=NONE", "--inline-execution=off",
    )  # fmt: skip
    assert options == ServerOptions(
        server_id="abc",
        exit_timeout_secs=5,
        exit_on_error=False,
        strict_readiness=False,
        model_config_name="h100",
        model_load_thread_count=2,
        model_load_retry_count=3,
        allow_client_shm=True,
        inline_execution=False,
        http_max_input_size=1000,
    )


def test_response_pool_size_is_an_option_of_grpc() -> None:
    assert read("--grpc-max-response-pool-size=7").grpc_options.max_response_pool_size == 7


def test_flag_value_in_the_next_word_reads_like_one_after_an_equals_sign() -> None:
    line = ["--id", "abc", "--http-port", "1", "--log-info", "off", "--disable-auto-complete-config"]
    joined = ["--id=abc", "--http-port=1", "--log-info=off", "--disable-auto-complete-config"]
    assert read(*line) == read(*joined)
    assert read(*line).server_id == "abc"


def test_flag_value_may_look_like_a_flag_or_be_empty_or_hold_equals_signs() -> None:
    assert read("--id", "--http-port").server_id == "--http-port"
    assert read("--id=").server_id == ""
    assert read("--id=a=b").server_id == "a=b"


def test_repeated_scalar_keeps_the_last() -> None:
    assert read("--http-port=1", "--http-port=2").http.port == 2


def test_unambiguous_prefix_is_the_flag() -> None:
    assert read("--model-repo=r", "--http-por", "7") == ServerOptions(model_repositories=("r",), http=Endpoint(7))


def test_flag_that_is_a_prefix_of_others_is_itself() -> None:
    assert read("--rate-limit=off") == ServerOptions()


def test_repositories_are_sorted_without_duplicates() -> None:
    options = read("--model-repository=b", "--model-store", "c", "--model-repository=a", "--model-store=b")
    assert options.model_repositories == ("a", "b", "c")


def test_repository_of_the_environment_is_a_fallback() -> None:
    environment = {"AIP_STORAGE_URI": "there"}
    assert read(environment=environment).model_repositories == ("there",)
    assert read("--model-repository=here", environment=environment).model_repositories == ("here",)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("On", True), ("1", True), ("false", False), ("OFF", False), ("0", False)],
)
def test_boolean_words_are_read_in_any_case(text: str, value: bool) -> None:
    assert read(f"--reuse-grpc-port={text}").grpc.reuse_port is value


def test_endpoints_take_address_port_reuse_and_permission() -> None:
    options = read(
        "--http-address=127.0.0.1", "--http-port=1", "--reuse-http-port=true",
        "--grpc-address=::1", "--grpc-port=2", "--allow-grpc=false",
        "--metrics-address=127.0.0.2", "--metrics-port=3", "--allow-metrics=false",
    )  # fmt: skip
    assert options.http == Endpoint(1, "127.0.0.1", reuse_port=True)
    assert options.grpc == Endpoint(2, "::1", allowed=False)
    assert options.metrics == Endpoint(3, "127.0.0.2", allowed=False)


def test_metrics_address_follows_http_when_not_given() -> None:
    assert read("--http-address=127.0.0.1").metrics == Endpoint(8002, "127.0.0.1")


def test_log_flags_reach_the_log_options() -> None:
    options = read(
        "--log-verbose=2", "--log-info=false", "--log-warning=false", "--log-error=false",
        "--log-format=ISO8601", "--log-file=f", environment={"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"},
    )  # fmt: skip
    assert options.log == LogOptions(2, False, False, False, "ISO8601", "f", False)


@pytest.mark.parametrize(("text", "level"), [("true", 1), ("FALSE", 0), ("3", 3)])
def test_verbosity_is_a_level_or_a_boolean_word(text: str, level: int) -> None:
    options = read(f"--log-verbose={text}")
    assert (options.log.verbose, options.warnings) == (level, ())


def test_escaping_stays_on_for_other_values_of_its_variable() -> None:
    assert read(environment={"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "1"}).log.escape


def test_scheduler_hooks_come_from_the_environment() -> None:
    hooks = {"TRITONSERVER_DELAY_SCHEDULER": "32", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "7"}
    assert read(environment={"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "3"}).grpc_response_delay_secs == 3
    options = read(environment=hooks)
    assert (options.delay_scheduler, options.backlog_delay_scheduler) == (32, 7)
    assert read(environment={"TRITONSERVER_DELAY_SCHEDULER": "many"}).delay_scheduler == 0


def test_backend_settings_of_one_backend_override_those_of_all() -> None:
    options = read(
        "--backend-config=default-max-batch-size=8", "--backend-config=a=1",
        "--backend-config=onnxruntime,default-max-batch-size=2", "--backend-config=python,b=c=d",
        "--backend-config=a=3",
    )  # fmt: skip
    assert options.backend_config == {
        "": {"default-max-batch-size": "8", "a": "3"},
        "onnxruntime": {"default-max-batch-size": "2"},
        "python": {"b": "c=d"},
    }
    assert options.backend_settings("onnxruntime") == {"default-max-batch-size": "2", "a": "3"}
    assert options.backend_settings("identity") == {"default-max-batch-size": "8", "a": "3"}


@pytest.mark.rows("C44")
def test_backend_directory_is_a_flag_or_a_setting_of_all_backends() -> None:
    """The setting goes before the flag, as in the real server, in whatever order they come."""
    setting = "--backend-config=backend-directory=/setting"
    assert read().backend_directory == "/opt/tritonserver/backends"
    assert read("--backend-directory=/flag").backend_directory == "/flag"
    for words in ([setting, "--backend-directory=/flag"], ["--backend-directory=/flag", setting]):
        assert read(*words).backend_directory == "/setting"
    assert read("--backend-config=fw,backend-directory=/own").backend_directory == "/opt/tritonserver/backends"


def test_too_small_numbers_are_raised_to_the_minimum() -> None:
    options = read("--exit-timeout-secs=-5", "--model-load-thread-count=0", "--model-load-retry-count=-1")
    assert (options.exit_timeout_secs, options.model_load_thread_count, options.model_load_retry_count) == (0, 1, 0)


def test_strict_model_config_turns_completion_off_and_warns() -> None:
    options = read("--strict-model-config=true")
    assert not options.auto_complete_config
    assert options.warnings == (
        "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.",
    )


def test_disabled_completion_overrides_strict_model_config() -> None:
    options = read("--disable-auto-complete-config", "--strict-model-config=false")
    assert not options.auto_complete_config
    assert options.warnings[-1] == (
        "Overriding deprecated '--strict-model-config' from False to True in favor of '--disable-auto-complete-config'!"
    )
    assert read("--disable-auto-complete-config").warnings == ()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["--http-port=abc"], 'Bad option: "--http-port".\nInvalid option value. Got abc'),
        (["--http-por="], 'Bad option: "--http-port".\nInvalid option value. Got '),
        (
            ["--http-port=99999999999"],
            'Bad option: "--http-port".\nProvided option value is out of bound. Got 99999999999',
        ),
        (["--grpc-port=70000"], 'Bad option: "--grpc-port".\nProvided option value is out of bound. Got 70000'),
        (["--exit-timeout-secs=abc"], 'Bad option: "--exit-timeout-secs".\nInvalid option value. Got abc'),
        (["--log-verbose=abc"], 'Bad option: "--log-verbose".\nInvalid option value. Got abc'),
        (
            ["--pinned-memory-pool-byte-size=99999999999999999999"],
            'Bad option: "--pinned-memory-pool-byte-size".\n'
            "Provided option value is out of bound. Got 99999999999999999999",
        ),
        (
            ["--min-supported-compute-capability=x"],
            'Bad option: "--min-supported-compute-capability".\nInvalid option value. Got x',
        ),
        (
            ["--strict-readiness", "yes"],
            'Bad option: "--strict-readiness".\ninvalid value for bool option: yes\nUse true or false.',
        ),
        (
            ["--model-control-mode=bla"],
            'Bad option: "--model-control-mode".\ninvalid argument for --model-control-mode\n'
            "Use none, poll or explicit.",
        ),
        (
            ["--log-format=iso8601"],
            'Bad option: "--log-format".\ninvalid argument for --log-format\nUse default, ISO8601 or json.',
        ),
        (
            ["--rate-limit=x"],
            'Bad option: "--rate-limit".\ninvalid argument for --rate-limit\nUse execution_count or off.',
        ),
        (
            ["--grpc-infer-response-compression-level=most"],
            'Bad option: "--grpc-infer-response-compression-level".\n'
            "invalid argument for --grpc_infer_response_compression_level\nUse none, low, medium or high.",
        ),
        (
            ["--trace-level=q"],
            'Bad option: "--trace-level".\ninvalid value for trace level option: q\nUse off, timestamps or tensors.',
        ),
        (
            ["--model-config-name="],
            'Bad option: "--model-config-name".\nError: empty argument for --model-config-name',
        ),
        (
            ["--http-max-input-size=0"],
            'Bad option: "--http-max-input-size".\nError: --http-max-input-size must be greater than 0.',
        ),
        (
            ["--grpc-infer-thread-count=1"],
            'Bad option: "--grpc-infer-thread-count".\n'
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
        (
            ["--grpc-max-response-pool-size=0"],
            'Bad option: "--grpc-max-response-pool-size".\n'
            "Error: --grpc-max-response-pool-size must be greater than 0.",
        ),
        (
            ["--backend-config=,a=b"],
            'Bad option: "--backend-config".\nNo backend specified. --backend-config option format is '
            "<backend name>,<setting>=<value> or <setting>=<value>. Got ,a=b",
        ),
        (
            ["--backend-config=x,=a"],
            'Bad option: "--backend-config".\n'
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got x,=a",
        ),
        (
            ["--backend-config=a"],
            'Bad option: "--backend-config".\n'
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got a",
        ),
        (
            ["--cuda-memory-pool-byte-size=64"],
            'Bad option: "--cuda-memory-pool-byte-size".\nCannot parse pair option due to incorrect number of inputs.'
            "--<pair option> argument requires format <first>:<second>. Found: 64",
        ),
        (
            ["--cuda-virtual-address-size=0:"],
            'Bad option: "--cuda-virtual-address-size".\nInvalid option value. Got ',
        ),
        (
            ["--sagemaker-safe-port-range=a-9"],
            'Bad option: "--sagemaker-safe-port-range".\nInvalid option value. Got a',
        ),
        (["--allow-http"], "option '--allow-http' requires an argument"),
        (["--help=1"], "option '--help' doesn't allow an argument"),
        (
            ["--log=1"],
            "option '--log=1' is ambiguous; possibilities: '--log-verbose' '--log-info' '--log-warning' "
            "'--log-error' '--log-format' '--log-file'",
        ),
        (["--bogus=1"], "unrecognized option '--bogus=1'"),
        (
            ["pos", "--id=x"],
            "Unexpected argument: pos\nFlags are written --flag=value or --flag value, such as --model-repository=pos.",
        ),
        (["--", "--id=x"], "Unexpected argument: --id=x\nFlags are written --flag=value or --flag value."),
        (["-q"], "invalid option -- 'q'"),
        (
            ["--load-model=x"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--response-cache-byte-size=5", "--cache-config=local,size=4"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other.",
        ),
    ],
)  # fmt: skip
def test_wrong_line_is_refused_with_tritons_text(line: Sequence[str], text: str) -> None:
    assert refusal(*line) == text


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--htp-port=1", "--http-port"),
        ("--http_port=1", "--http-port"),
        ("--model-respository", "--model-repository"),
        ("--HTTP-PORT=1", "--http-port"),
        ("--strict-readyness=1", "--strict-readiness"),
        ("-http-port=1", "--http-port"),
    ],
)
def test_unknown_flag_suggests_the_nearest(word: str, near: str) -> None:
    assert refusal(word).endswith(f". Did you mean '{near}'?")


def test_first_mistake_or_request_for_help_wins() -> None:
    with pytest.raises(HelpRequested):
        read("--help", "--bogus")
    with pytest.raises(Invalid):
        read("--bogus", "--help")
    with pytest.raises(VersionRequested):
        read("--version", "stray")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["--http-port=12x"], "'--http-port=12x' is read as 12."),
        (["--log-verbose", "1.9"], "'--log-verbose=1.9' is read as 1."),
        (["--http-port=1e2"], "'--http-port=1e2' is read as 1."),
    ],
)
def test_number_with_a_suffix_is_read_and_warns(line: Sequence[str], text: str) -> None:
    assert read(*line).warnings == (text,)


def test_whole_numbers_do_not_warn() -> None:
    options = read("--http-port", " +12", "--http-max-input-size=9007199254740993")
    assert (options.http.port, options.http_max_input_size, options.warnings) == (12, 9007199254740993, ())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (["--allow-sagemaker=1"], "--allow-sagemaker=true"),
    ],
)
def test_flag_of_a_missing_feature_is_refused(line: Sequence[str], shown: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read(*line)
    assert str(caught.value) == f"{shown} is not supported yet"


@pytest.mark.rows("C50")
def test_rate_limit_is_read_in_any_case() -> None:
    assert read("--rate-limit=Execution_Count").rate_limit
    assert not read("--rate-limit=execution_count", "--rate-limit=off").rate_limit
    assert refusal("--rate-limit=x").startswith('Bad option: "--rate-limit".\ninvalid argument for --rate-limit\n')


@pytest.mark.rows("C51")
def test_resources_are_counted_by_name_and_device() -> None:
    given = ["R:4", "R:2:0", "r:1", "S:5:-1", "S:3", "T:1x:2y"]
    options = read(*(f"--rate-limit-resource={text}" for text in given))
    assert options.rate_limit_resources == {("R", -1): 4, ("R", 0): 2, ("r", -1): 1, ("S", -1): 3, ("T", 2): 1}


@pytest.mark.rows("C51")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, f"{_RESOURCE_FORM}. Got {text}") for text in ("R", "", "R:1:2:3")),
        ("R:", "Invalid option value. Got "),
        ("R:x", "Invalid option value. Got x"),
        ("R:1:", "Invalid option value. Got "),
        ("R:1:x", "Invalid option value. Got x"),
        ("R:-1", "Provided option value is out of bound. Got -1"),
    ],
)
def test_malformed_resource_is_refused(text: str, said: str) -> None:
    flag = f"--rate-limit-resource={text}"
    assert refusal(flag) == f'Bad option: "--rate-limit-resource".\n{said}'


@pytest.mark.rows("C57")
def test_host_policies_are_settings_by_name() -> None:
    flags = ("cpu,numa-node=0", "mine,cpu-cores=0-1,4-5", "mine,cpu-cores=2-3", "mine,numa-node=1")
    options = read(*(f"--host-policy={text}" for text in flags))
    assert options.host_policies == {"cpu": {"numa-node": "0"}, "mine": {"cpu-cores": "2-3", "numa-node": "1"}}


@pytest.mark.rows("C57")
@pytest.mark.parametrize("text", ["cpu", "cpu,", ",numa-node=0", "cpu,numa-node", "cpu,numa-node=", "cpu,=1"])
def test_malformed_host_policy_is_refused(text: str) -> None:
    assert refusal(f"--host-policy={text}") == (
        f"Bad option: \"--host-policy\".\n--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}"
    )


def test_unknown_setting_of_a_host_policy_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        read("--host-policy=cpu,bogus=1")
    assert str(caught.value) == (
        "Unsupported host policy setting 'bogus' is specified, supported settings are 'numa-node', 'cpu-cores'"
    )


def test_flag_of_a_missing_feature_is_accepted_at_its_default() -> None:
    options = read("--rate-limit=OFF", "--grpc-use-ssl=false", "--model-namespacing=0", "--model-control-mode=none")
    assert options == ServerOptions()


def test_flag_without_effect_is_accepted_and_warns() -> None:
    options = read("--http-thread-count=16", "--grpc-infer-thread-count=2")
    assert options.warnings == ("'--http-thread-count' has no effect: connections are served by one event loop.",)


def test_vertex_mode_of_the_environment_is_refused_and_can_be_declined() -> None:
    environment = {"AIP_MODE": "PREDICTION"}
    hint = "AIP_MODE asks for it: --allow-vertex-ai=false does without."
    assert refusal(environment=environment) == f"--allow-vertex-ai=true is not supported yet\n{hint}"
    assert refusal("--allow-sagemaker=1", "--allow-vertex-ai=0", environment=environment).endswith("supported yet")
    assert not read("--allow-vertex-ai=false", environment=environment).http.allowed
    assert read("--allow-vertex-ai=false", "--allow-http=true", environment=environment).http.allowed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["--grpc-port=8000"], "HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000"),
        (["--metrics-port=8001"], "GRPC requests and metrics requests at the same address and port 0.0.0.0:8001"),
        (["--http-port=8002"], "HTTP requests and metrics requests at the same address and port 0.0.0.0:8002"),
    ],
)
def test_ports_that_collide_are_refused(line: Sequence[str], text: str) -> None:
    assert refusal(*line) == f"The server cannot listen to {text}"


@pytest.mark.parametrize(
    "line",
    [
        ["--grpc-port=8000", "--grpc-address=127.0.0.1"],
        ["--grpc-port=8000", "--allow-http=false"],
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0"],
        ["--allow-http=false", "--http-port=-47"],
        ["--allow-grpc=false", "--grpc-port=65536"],
        ["--allow-metrics=false", "--metrics-port=-2147483648"],
    ],
)
def test_ports_that_cannot_collide_are_accepted(line: Sequence[str]) -> None:
    assert read(*line).warnings == ()


def test_models_to_load_are_sorted_without_duplicates() -> None:
    options = read("--model-control-mode=EXPLICIT", "--load-model=b", "--load-model=a", "--load-model=b")
    assert (options.model_control_mode, options.load_models) == ("explicit", ("a", "b"))


def test_star_excludes_other_models_to_load() -> None:
    """Contract C15."""
    assert read("--model-control-mode=explicit", "--load-model=*", "--load-model=*").load_models == ("*",)
    text = "Wildcard model name '*' must be the ONLY startup model if specified at all."
    assert refusal("--model-control-mode=explicit", "--load-model=*", "--load-model=a") == text


def test_patterns_of_forwarded_headers_reach_their_fields() -> None:
    options = read("--http-header-forward-pattern=^x-.*", "--grpc-header-forward-pattern=y|z")
    assert (options.http_forward_pattern, options.grpc_forward_pattern) == ("^x-.*", "y|z")


def test_invalid_pattern_is_refused() -> None:
    """The real server forwards nothing then, without a word."""
    words = refusal("--http-header-forward-pattern=(")
    assert words.startswith("Bad option: \"--http-header-forward-pattern\".\n'(' is no regular expression: ")


def test_restrictions_are_collected_by_category() -> None:
    options = read(
        "--http-restricted-api=health,model-repository:k=v=w", "--http-restricted-api=trace:x:y=z",
        "--grpc-restricted-protocol=inference:k=v",
    )  # fmt: skip
    assert options.http_restricted == {"health": ("k", "v=w"), "model-repository": ("k", "v=w"), "trace": ("x:y", "z")}
    assert options.grpc_restricted == {"inference": ("k", "v")}


@pytest.mark.parametrize(("flag", "word"), [("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol")])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["health"], "--{flag} option format is '<config name>:<setting>=<value>'. Got health"),
        (["health:k"], "--{flag} option format is '<config name>:<setting>=<value>'. Got health:k"),
        (["health=v"], "--{flag} option format is '<config name>:<setting>=<value>'. Got health=v"),
        ([":k=v"], "--{flag} option format is '<config name>:<setting>=<value>'. Got :k=v"),
        (["health:=v"], "--{flag} option format is '<config name>:<setting>=<value>'. Got health:=v"),
        (["health:k="], "--{flag} option format is '<config name>:<setting>=<value>'. Got health:k="),
        (["Health:k=v"], "unknown restricted {word} 'Health' "),
        (["health,:k=v"], "unknown restricted {word} '' "),
        (["health,health:k=v"], "restricted {word} 'health' can not be specified in multiple config groups"),
        (
            ["health:a=b", "trace,health:c=d"],
            "restricted {word} 'health' can not be specified in multiple config groups",
        ),
    ],
)
def test_invalid_restriction_is_refused(flag: str, word: str, values: Sequence[str], text: str) -> None:
    """Contract C26, C35; the words are those of the real server."""
    said = refusal(*(f"--{flag}={value}" for value in values))
    expected = f'Bad option: "--{flag}".\n' + text.format(flag=flag, word=word)
    assert said.partition("\nUse ")[0] == expected


@pytest.mark.rows("C13", "C14", "C19")
def test_options_of_model_control_are_read() -> None:
    options = read(
        "--model-control-mode=POLL", "--repository-poll-secs=3", "--settle-secs=0.5", "--model-namespacing=on"
    )
    assert (options.model_control_mode, options.repository_poll_secs, options.settle_secs) == ("poll", 3, 0.5)
    assert options.model_namespacing
    assert options.warnings == ()
    options = read("--repository-poll-secs=-1", "--settle-secs=-1")
    assert (options.repository_poll_secs, options.settle_secs, options.model_namespacing) == (0, 0.0, False)


def test_gpu_fallback_is_off_unless_it_names_the_cpu() -> None:
    assert [parse(words, {}).gpu_fallback for words in ([], ["--gpu-fallback=none"], ["--gpu-fallback=cpu"])] == [
        False,
        False,
        True,
    ]
    with pytest.raises(Invalid, match=r"invalid argument for --gpu-fallback\nUse none or cpu.$"):
        parse(["--gpu-fallback=gpu"], {})


def test_files_of_a_cloud_are_kept_only_if_asked_for() -> None:
    assert parse([], {}).cloud_cache_directory == ""
    assert parse(["--cloud-cache-directory=/c"], {}).cloud_cache_directory == "/c"


def test_environments_are_built_only_if_asked_for() -> None:
    assert not parse([], {}).build_environments
    words = ["--python-environments=build", "--python-environment-directory=/c", "--python-environment-timeout-secs=60"]
    options = parse(words, {})
    assert (options.build_environments, options.environment_directory, options.environment_limit_secs) == (
        True,
        "/c",
        60,
    )
