"""Log lines with advice after a failed load."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.backends.registry import usual_files
from halimede.engine.engine import Engine
from halimede.engine_port import RepositoryIndex
from halimede.errors import Error
from tests.engine.engines import STOP_SECONDS, ask, options_for, run


def test_advice_for_a_missing_backend_is_only_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        engine = Engine(options_for(tmp_path, {"m": 'backend: "tensorrtllm"'}), asyncio.get_running_loop())
        assert await engine.start() is False
        reason = (
            "Invalid argument: unable to find backend library for backend 'tensorrtllm', try specifying runtime on the "
            "model configuration."
        )
        entries = await ask(engine, RepositoryIndex())
        assert not isinstance(entries, Error)
        assert [(entry.name, entry.version, entry.reason) for entry in entries] == [("m", 1, reason)]
        assert await engine.stop(STOP_SECONDS)

    run(scenario)
    assert [record.message[:46] for record in caplog.records if record.levelname == "WARNING"] == [
        "model 'm': 'tensorrtllm' is not served here: r"
    ]


FILES = " nor a ".join(f"1/{each.filename}" for _, each in reversed(usual_files()))


@pytest.mark.parametrize(
    ("below", "advice"),
    [
        ("", f"model 'm': its configuration names no backend, and there is neither a {FILES}"),
        ("m", "model '1': '{}' looks like a model, and a repository is the directory around its models"),
    ],
)
def test_advice_for_a_folder_without_a_backend(
    tmp_path: Path, below: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        options = replace(
            options_for(tmp_path, {"m": "max_batch_size: 1"}), model_repositories=(str(tmp_path / below),)
        )
        engine = Engine(options, asyncio.get_running_loop())
        assert await engine.start() is False
        assert await engine.stop(STOP_SECONDS)

    run(scenario)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [advice.format(tmp_path / "m")]
