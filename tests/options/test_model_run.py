import pytest

from halimede.errors import Error
from halimede.options import HelpRequested, model_run_usage, parse_model_run


def test_order_with_everything() -> None:
    order = parse_model_run(
        [
            *("--input=A=[1]", "m/add", "--input", "B=x=y", "--version", "3", "--json", "--repeat=5"),
            *("--model-repository=r", "--load-model=other", "--backend-directory=b", "--log-verbose=1"),
            *("--backend-config=python,k=v", "--model-config-name=c", "--disable-auto-complete-config"),
        ]
    )
    assert (order.path, order.inputs, order.version, order.json, order.repeat) == (
        *("m/add", ("A=[1]", "B=x=y")),
        *(3, True, 5),
    )
    server = order.server
    assert (server.model_repositories, server.load_models) == (("r",), ("other",))
    assert (server.backend_directory, server.backend_settings("python")) == ("b", {"k": "v"})
    assert (server.model_config_name, server.auto_complete_config, server.log.verbose) == ("c", False, 1)


def test_order_with_a_path_only() -> None:
    order = parse_model_run(["m"])
    assert (order.inputs, order.version, order.json, order.repeat) == ((), -1, False, 1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "PATH, a model's directory, is missing"),
        (["a", "b"], "Unexpected argument: b"),
        (["a", "--inptu=x"], "unrecognized option '--inptu=x'\nDid you mean '--input'?"),
        (["a", "--http-port=1"], "unrecognized option '--http-port=1'"),
        (["a", "--json=1"], "option '--json' doesn't allow an argument"),
        (["a", "--input"], "option '--input' requires an argument"),
        (["a", "--version=0"], 'Bad option: "--version".\nProvided option value is out of bound. Got 0'),
        (["a", "--repeat=x"], 'Bad option: "--repeat".\nInvalid option value. Got x'),
        (["a", "--backend-config=x"], "--backend-config option format is"),
    ],
)
def test_wrong_order(words: list[str], text: str) -> None:
    with pytest.raises(Error) as caught:
        parse_model_run(words)
    assert text in str(caught.value)


def test_help_comes_before_errors() -> None:
    with pytest.raises(HelpRequested):
        parse_model_run(["a", "b", "--help"])
    assert "--input <name=value>" in model_run_usage()
