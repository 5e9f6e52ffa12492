"""Repository agents that take long while a server starts."""

import asyncio
import os
from pathlib import Path

from halimede.engine.engine import Engine
from tests.engine.engines import IDENTITY, STOP_SECONDS, options_for, run

AGENT = """
from halimede.agents import RepositoryAgent

class Patient(RepositoryAgent):
    def load(self):
        with open(self.model.parameters["until"]) as pipe:  # until somebody writes to it
            pipe.read(1)
"""


def test_models_are_loaded_while_the_agents_of_another_work(tmp_path: Path) -> None:
    """Agents take no slot, and there is only one."""
    agent = tmp_path / "agents" / "patient" / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text(AGENT)
    go = tmp_path / "go"
    os.mkfifo(go)
    writer = os.open(go, os.O_RDWR)  # does not wait for a reader
    parameter = f'parameters {{ key: "until" value: "{go}" }}'
    asking = f'model_repository_agents {{ agents {{ name: "patient" {parameter} }} }}'
    options = options_for(
        tmp_path / "models",
        {"a": IDENTITY + asking, "b": IDENTITY},
        repoagent_directory=str(tmp_path / "agents"),
        model_load_thread_count=1,
    )

    async def scenario() -> None:
        engine = Engine(options, asyncio.get_running_loop())
        start = asyncio.ensure_future(engine.start())
        while not engine.models.ready_versions("b"):
            await asyncio.sleep(0)
        assert not engine.models.ready_versions("a")
        os.write(writer, b"x")
        assert await start
        assert engine.models.ready_versions("a")
        assert await engine.stop(STOP_SECONDS)

    try:
        run(scenario)
    finally:
        os.write(writer, b"x")  # no thread is left waiting
        os.close(writer)
