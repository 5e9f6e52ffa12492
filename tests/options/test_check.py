"""The command lines of `check` and `init`."""

import pytest

from halimede.errors import Invalid
from halimede.options import HelpRequested, check_usage, init_usage, parse_check, parse_init


def test_repositories_and_flags() -> None:
    order = parse_check(["a/", "--json", "b", "--model-config-name=x", "a", "--model-namespacing", "true", "s3://b/p"])
    assert order.repositories == ("a", "b", "s3://b/p")
    assert (order.json, order.strict, order.load) == (True, False, False)
    assert (order.server.model_config_name, order.server.model_namespacing) == ("x", True)


def test_flags_without_an_effect_on_a_check_are_unknown() -> None:
    with pytest.raises(Invalid, match="unrecognized option '--http-port=1'"):
        parse_check(["a", "--http-port=1"])


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_check_wants_a_repository(words: list[str]) -> None:
    with pytest.raises(Invalid, match="REPO, the directory of a model repository, is missing"):
        parse_check(words)


def test_init() -> None:
    order = parse_init(["m.onnx", "--name", "x", "models", "--backend-config=onnxruntime,default-max-batch-size=7"])
    assert (order.source, order.repository, order.name) == ("m.onnx", "models", "x")
    assert order.server.backend_settings("onnxruntime") == {"default-max-batch-size": "7"}


@pytest.mark.parametrize(
    ("words", "text"), [([], "MODEL, a file"), (["m"], "REPO, the"), (["m", "r", "x"], "Unexpected argument: x")]
)
def test_init_wants_two_words(words: list[str], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        parse_init(words)


def test_help() -> None:
    for parse in (parse_check, parse_init):
        with pytest.raises(HelpRequested):
            parse(["x", "--help"])
    assert "--strict" in check_usage()
    assert "--name <name>" in init_usage()
