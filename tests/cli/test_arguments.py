"""The command lines of the small commands, and what is said about wrong ones."""

import pytest

from halimede.cli.arguments import COMMANDS, Check, Completion, Graph, Init, ModelRun, Top, read
from halimede.errors import Error, Invalid


def check(*words: str) -> Check:
    order = read("check", words)
    assert isinstance(order, Check)
    return order


def model_run(*words: str) -> ModelRun:
    order = read("model run", words)
    assert isinstance(order, ModelRun)
    return order


def test_check_takes_repositories_between_its_flags() -> None:
    order = check("a/", "--json", "b", "--model-config-name=x", "a", "--model-namespacing", "true", "s3://b/p")
    assert order.repositories == ("a", "b", "s3://b/p")
    assert (order.json, order.strict, order.load) == (True, False, False)
    assert (order.server.model_config_name, order.server.model_namespacing) == ("x", True)


def test_check_passes_the_warnings_of_the_server_on() -> None:
    assert check("a", "--log-verbose=1x").warnings == ("'--log-verbose=1x' is read as 1.",)
    assert read("completion", ["zsh"]).warnings == ()


def test_init_takes_a_file_and_a_repository() -> None:
    order = read("init", ["m.onnx", "--name", "x", "models", "--backend-config=onnxruntime,default-max-batch-size=7"])
    assert isinstance(order, Init)
    assert (order.source, order.repository, order.name) == ("m.onnx", "models", "x")
    assert order.server.backend_settings("onnxruntime") == {"default-max-batch-size": "7"}


def test_model_run_takes_all_of_its_flags() -> None:
    order = model_run(
        *("--input=A=[1]", "m/add", "--input", "B=x=y", "--version", "3", "--json", "--repeat=5"),
        *("--model-repository=r", "--load-model=other", "--backend-directory=b", "--log-verbose=1"),
        *("--backend-config=python,k=v", "--model-config-name=c", "--disable-auto-complete-config"),
        *("--sequence", "--sequence-id=7"),
    )
    assert (order.path, order.inputs, order.version) == ("m/add", ("A=[1]", "B=x=y"), 3)
    assert (order.json, order.repeat) == (True, 5)
    assert (order.sequence, order.sequence_id) == (True, "7")
    server = order.server
    assert (server.model_repositories, server.load_models) == (("r",), ("other",))
    assert (server.backend_directory, server.backend_settings("python")) == ("b", {"k": "v"})
    assert (server.model_config_name, server.auto_complete_config, server.log.verbose) == ("c", False, 1)


def test_model_run_has_defaults() -> None:
    order = model_run("m")
    assert (order.inputs, order.version, order.json, order.repeat) == ((), -1, False, 1)
    assert (order.sequence, order.sequence_id) == (False, "")


def test_top_watches_the_server_of_this_machine_by_default() -> None:
    assert read("top", []) == Top("localhost:8000", "", 1.0, False, False)


def test_top_takes_all_of_its_flags() -> None:
    words = ["http://h:1", "--metrics-url", "h:2/m", "--interval=0.5", "--once", "--json"]
    assert read("top", words) == Top("http://h:1", "h:2/m", 0.5, True, True)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["m"], Graph("m")),
        (["m", "--url", "host:1", "--format", "mermaid"], Graph("m", url="host:1", format="mermaid")),
        (["--model-repository=a", "m", "--model-repository", "b"], Graph("m", ("a", "b"), "")),
    ],
)
def test_graph_takes_a_server_or_repositories(words: list[str], order: Graph) -> None:
    assert read("graph", words) == order


def test_completion_takes_a_shell() -> None:
    assert read("completion", ["fish"]) == Completion("fish")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("check", "the following arguments are required: REPO"),
        ("check --json", "the following arguments are required: REPO"),
        ("check a --http-port=1", "unrecognized option '--http-port=1'"),
        ("check a --model-namespacing=x", 'Bad option: "--model-namespacing".\ninvalid value for bool option: x'),
        ("init", "the following arguments are required: FILE, REPO"),
        ("init m", "the following arguments are required: REPO"),
        ("init m r x", "unexpected argument: x"),
        ("top a b", "unexpected argument: b"),
        ("top --onec", "unrecognized option '--onec'. Did you mean '--once'?"),
        ("top --once=1", "argument --once: ignored explicit argument '1'"),
        ("top --interval", "argument --interval: expected one argument"),
        ("top --interval=0", "argument --interval: 0 is less than 0.1 seconds"),
        ("top --interval=nan", "argument --interval: nan is less than 0.1 seconds"),
        ("top --interval=x", "argument --interval: invalid number value: 'x'"),
        ("top --json", "--json needs --once"),
        ("model run", "the following arguments are required: PATH"),
        ("model run a b", "unexpected argument: b"),
        ("model run a --inptu=x", "unrecognized option '--inptu=x'. Did you mean '--input'?"),
        ("model run a --sequence-id=", "argument --sequence-id: it is empty"),
        ("model run a --repeat=x", "argument --repeat: invalid integer value: 'x'"),
        ("model run a --version=0", "argument --version: 0 is not a number from 1 on"),
        ("model run a --backend-config=x", 'Bad option: "--backend-config".\n--backend-config option format is'),
        ("graph", "the following arguments are required: MODEL"),
        ("graph a b", "unexpected argument: b"),
        ("graph m --ulr=x", "unrecognized option '--ulr=x'. Did you mean '--url'?"),
        ("graph m --url=", "argument --url: it is empty"),
        ("graph m --url=x --model-repository=y", "argument --model-repository: not allowed with argument --url"),
        ("graph m --format=png", "argument --format: invalid choice: 'png' (choose from "),
        ("completion", "the following arguments are required: SHELL"),
        ("completion bash zsh", "unexpected argument: zsh"),
        ("completion bsh", "argument SHELL: invalid choice: 'bsh' (choose from "),
    ],
)
def test_wrong_line_is_named(line: str, text: str) -> None:
    command = max((name for name in COMMANDS if line.startswith(name)), key=len)
    with pytest.raises(Error) as caught:
        read(command, line.removeprefix(command).split())
    assert str(caught.value).startswith(text)


def test_option_may_not_be_abbreviated() -> None:
    """A new option must not change what a script means."""
    with pytest.raises(Invalid, match=r"unrecognized option '--jso'\. Did you mean '--json'\?"):
        read("check", ["a", "--jso"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_printed_before_mistakes_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(command, ["a", "b", "c", "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"usage: halimede {command} ")
    assert printed.err == ""
