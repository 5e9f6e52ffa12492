"""Loads that bring code need `--allow-code-upload=true`, a flag of this server's own."""

import json
from pathlib import Path

import pytest

from halimede.engine_port import LoadModel
from halimede.errors import Unsupported
from tests.engine.engines import IDENTITY, run, running
from tests.loading.test_repository_control import JSON_CONFIG, Controlled, Gated, control, explicit, refusal

_LIST = json.dumps({"EXECUTION_ENV_PATH": {"string_value": "$$TRITON_MODEL_DIRECTORY/requirements.txt"}})


@pytest.mark.parametrize(
    ("config", "path", "what"),
    [
        (JSON_CONFIG, "1/model.py", "file '1/model.py'"),
        (JSON_CONFIG, "1/libcustom.so.2", "file '1/libcustom.so.2'"),
        (JSON_CONFIG, "batch_strategy.py/x/..", "file 'batch_strategy.py/x/..'"),
        (JSON_CONFIG, "x/../1/batch_strategy.PY//.", "file 'x/../1/batch_strategy.PY//.'"),
        (JSON_CONFIG.replace("identity", "python"), "1/model.txt", "a model of the backend 'python'"),
        (JSON_CONFIG.replace("identity", "fw"), "1/weights.bin", "a model of the backend 'fw'"),
        (
            JSON_CONFIG.replace('"identity"', '"identity", "runtime": "model.py"'),
            "1/weights.bin",
            "a model of the backend 'identity'",
        ),
        (
            JSON_CONFIG.replace('"identity"', '"identity", "parameters": ' + _LIST),
            "requirements.txt",
            "a model of the backend 'identity'",
        ),
    ],
)
def test_files_that_are_code_need_consent(tmp_path: Path, config: str, path: str, what: str) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            answer = await control(engine, LoadModel("sent", config, (("1/model.py", b""), (path, b""))[-1:]))
            assert refusal(answer) == (
                Unsupported,
                f"load of model 'sent' brings code ({what}). Start the server with '--allow-code-upload=true' to allow "
                "that.",
            )

    run(scenario)


@pytest.mark.parametrize(
    ("own", "consent", "loads"), [("identity", False, False), ("python", False, True), ("identity", True, True)]
)
def test_configuration_that_makes_code_of_a_model_needs_consent(
    tmp_path: Path, own: str, consent: bool, loads: bool
) -> None:
    async def scenario() -> None:
        text = IDENTITY.replace("identity", own)
        controlled = Controlled(explicit(tmp_path, models={"m": text}, code=consent), Gated())
        answer = await controlled.ask(LoadModel("m", JSON_CONFIG.replace("identity", "python")))
        assert answer is None if loads else isinstance(answer, Unsupported)
        await controlled.end()

    run(scenario)


@pytest.mark.parametrize(
    ("parameter", "own", "new", "refused"),
    [
        ("EXECUTION_ENV_PATH", "", "", None),
        ("EXECUTION_ENV_PATH", "/own.tar.gz", "/own.tar.gz", None),
        ("EXECUTION_ENV_PATH", "/own.tar.gz", "", None),
        ("EXECUTION_ENV_PATH", "", "/other.tar.gz", "the environment '/other.tar.gz'"),
        ("EXECUTION_ENV_PATH", "/own.tar.gz", "/other.tar.gz", "the environment '/other.tar.gz'"),
        ("EXECUTION", "in_process", "in_process", None),
        ("EXECUTION", "in_process", "", None),
        ("EXECUTION", "", "in_process", "the execution 'in_process'"),
    ],
)
def test_configuration_that_brings_an_environment_or_the_server_s_process_needs_consent(
    tmp_path: Path, parameter: str, own: str, new: str, refused: str | None
) -> None:
    """An archive has programs in it; in the server's process a model could do anything that the server can."""

    async def scenario() -> None:
        text = IDENTITY.replace("identity", "python")
        text += f'parameters {{ key: "{parameter}" value {{ string_value: "{own}" }} }}' if own else ""
        parameters = json.dumps({parameter: {"string_value": new}} if new else {})
        config = JSON_CONFIG.replace('"identity"', f'"python", "parameters": {parameters}')
        controlled = Controlled(explicit(tmp_path, models={"m": text}), Gated())
        answer = await controlled.ask(LoadModel("m", config))
        if refused is None:
            assert answer is None
        else:
            assert isinstance(answer, Unsupported)
            assert f"({refused})" in str(answer)
        await controlled.end()

    run(scenario)


def test_environment_of_a_backend_for_data_needs_consent(tmp_path: Path) -> None:
    """In a child process any backend runs under the environment's interpreter."""

    async def scenario() -> None:
        controlled = Controlled(explicit(tmp_path, models={"m": IDENTITY}), Gated())
        config = JSON_CONFIG.replace('"identity"', f'"identity", "parameters": {_LIST}')
        answer = await controlled.ask(LoadModel("m", config))
        assert isinstance(answer, Unsupported)
        assert "(the environment '$$TRITON_MODEL_DIRECTORY/requirements.txt')" in str(answer)
        await controlled.end()

    run(scenario)
