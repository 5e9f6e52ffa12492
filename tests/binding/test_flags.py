"""Keyword arguments as the flags of the command."""

from pathlib import Path
from typing import Any

import pytest

from halimede.binding.flags import options_of
from halimede.errors import Error, Invalid, Unsupported


def test_keywords_and_words_are_the_same_flags() -> None:
    options = options_of(["--grpc-port=0"], {"http_port": 0, "allow_metrics": False, "id": "mine"}, {})
    assert (options.grpc.port, options.http.port, options.metrics.allowed, options.server_id) == (0, 0, False, "mine")


def test_list_gives_a_flag_several_times() -> None:
    options = options_of([], {"model_repository": ["b", Path("a")], "load_model": None}, {})
    assert options.model_repositories == ("a", "b")


@pytest.mark.parametrize("value", [True, False])
def test_switch_takes_a_truth_value(value: bool) -> None:
    assert options_of([], {"disable_auto_complete_config": value}, {}).auto_complete_config is not value


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"http_prot": 0}, Invalid, "unrecognized option '--http-prot=0'. Did you mean '--http-port'?"),
        ({"http_port": "x"}, Invalid, 'Bad option: "--http-port".\nInvalid option value. Got x'),
        ({"allow_sagemaker": True}, Unsupported, "--allow-sagemaker=true is not supported yet"),
        ({"help": True}, Invalid, "--help and --version are for the command: halimede serve --help"),
        (
            {"log_verbose": 1},
            Invalid,
            "the flags --log-... are for the command; a program sets up its own log: logging.getLogger('halimede')",
        ),
    ],
)
def test_wrong_flags(options: dict[str, Any], error: type[Error], text: str) -> None:
    with pytest.raises(error) as caught:
        options_of([], options, {})
    assert str(caught.value) == text


def test_environment_counts_as_for_the_command() -> None:
    with pytest.raises(Unsupported, match="--allow-vertex-ai=true"):
        options_of([], {}, {"AIP_MODE": "PREDICTION"})
    options_of([], {}, {"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"})
