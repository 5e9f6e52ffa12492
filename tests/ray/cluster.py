"""A Ray cluster of three nodes on this machine, with applications of ours and models for them. One thread."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.compat.serving import write_model
from tests.ports import free_ports

PATIENCE = 120.0
"""Seconds after which a wait has failed: a replica is a process that imports Ray, which takes long on two cores."""

AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Ports of the programs that Ray starts beside each node."""

ADDS_UP = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sequence = request.correlation_id()
            first = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            self.sums[sequence] = number if first else self.sums[sequence] + number
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.sums[sequence])]))
        return answers
"""
"""Answers with the sum of the numbers of the sequence so far."""

SLOW = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
"""Answers with its input, ten times a second."""

TICKS = """
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
            for tick in range(count):
                if request.is_cancelled():
                    (self.folder / "cancelled").touch()
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([tick], np.int32))]))
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Answers INPUT0 = [n] by 0, 1, ..., n - 1, a hundred times a second, until it is cancelled."""

DECOUPLED = "model_transaction_policy { decoupled: true }\n"
IN_SEQUENCES = "sequence_batching { oldest { max_candidate_sequences: 64 } max_sequence_idle_microseconds: 60000000 }\n"


class Nodes:
    """Three nodes, each with a loopback address of its own, and with room for two replicas of the deployment `Engine`.

    No address is 127.0.0.1: Ray takes another address of the machine instead.
    """

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._hosts = (f"127.0.0.{host}" for host in range(2, 255))
        self.cluster = started(
            lambda: Cluster(initialize_head=True, head_node_args=self._arguments(include_dashboard=False))
        )
        self.others = [self.add(), self.add()]
        ray.init(address=self.cluster.address, log_to_driver=False, _node_ip_address="127.0.0.2")

    def _arguments(self, **more: Any) -> dict[str, Any]:
        # A node that lets the system choose these waits 15 s for its agents to say them, and ends if they are slower.
        ports = zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True)
        return {
            "num_cpus": 2,
            "object_store_memory": 200 << 20,
            "node_ip_address": next(self._hosts),
            **dict(ports),
            **more,
        }

    def add(self) -> Any:
        return started(lambda: self.cluster.add_node(**self._arguments()))

    def kill(self, node: Any) -> None:
        """Ends the processes of a node at once, as a power cut would."""
        self.others.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


def started(start: Callable[[], Any]) -> Any:
    """What `start` returns. Ray gives up a node whose agents take 15 s for their imports, which happens on a machine
    that is busy with other work; then another node is started."""
    for left in (2, 1, 0):
        try:
            return start()
        except Exception:  # the class that Ray raises
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


@contextmanager
def application(name: str, repository: Path, **settings: Any) -> Iterator[list[dict[str, str]]]:
    """Runs an application with ingresses on free ports, and yields its addresses. Deletes it at the end."""
    from ray import serve

    import halimede.ray

    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    local = {f"{kind}_address": "127.0.0.1" for kind in ("http", "grpc", "metrics")}
    try:
        yield halimede.ray.run(name, model_repository=repository, exit_timeout_secs=10, **ports, **local, **settings)
    finally:
        serve.delete(name)


def running(name: str, deployment: str = "Engine") -> int:
    """How many replicas of a deployment run."""
    from ray import serve

    found = serve.status().applications[name].deployments[deployment].replica_states
    return int(found.get("RUNNING", 0))


def until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Waits until something holds. Raises AssertionError if it takes longer."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, f"after {seconds} s not yet: {what}"
        time.sleep(0.1)


def write_python(repository: Path, name: str, code: str, more: str = "", max_batch_size: int = 0) -> Path:
    """Writes a Python model with INPUT0 and OUTPUT0 of INT32. Returns its folder."""
    version = write_model(repository, name, "INT32", backend="python", max_batch_size=max_batch_size, more=more)
    (version / "model.py").write_text(code)
    return version.parent
