"""The `tensorflow` backend. Runs in child processes. Models are described from their files; only `open` imports the
runtime, which takes two seconds and half a gigabyte."""

import logging
from collections.abc import Sequence

from halimede.backends.api import BaseBackend, BaseModel, Fault, Instance, InstancePlace, ModelFolder
from halimede.backends.creation import missing_runtime
from halimede.backends.tensorflow import TRAITS
from halimede.backends.tensorflow.checks import describe_signature, problems
from halimede.backends.tensorflow.settings import GRAPH, SAVED_MODEL, SessionPlan, check_platform, plan_session
from halimede.backends.tensorflow.signatures import Signature, read_graph, read_signature
from halimede.config.model_config import Description, Incomplete, ModelConfig
from halimede.errors import Cause, Error

log = logging.getLogger(__name__)

_TAG, _SIGNATURE = "TF_GRAPH_TAG", "TF_SIGNATURE_DEF"


class TensorFlowModel(BaseModel):
    def __init__(self, config: ModelConfig, folder: ModelFolder, signature: Signature, plan: SessionPlan) -> None:
        self._config = config
        self._folder = folder
        self._signature = signature
        self._plan = plan

    def create_instance(self, place: InstancePlace) -> Instance:
        from halimede.backends.tensorflow.session import TensorFlowInstance, open_session

        config = self._config
        path = self._folder.version / config.model_filename
        instances = config.instances_beside(place.host_policy)
        session = open_session(path, config, self._signature, self._plan, instances)
        return TensorFlowInstance(config, session, self._signature)


class TensorFlowBackend(BaseBackend):
    traits = TRAITS

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """All, if the runtime of the server's own environment sees one. The environments of models are not asked."""
        try:
            from halimede.backends.tensorflow.session import sees_gpus
        except ImportError:
            return ()
        return gpus if sees_gpus() else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | None:
        """What a signature declares. A frozen graph has none, and needs a full configuration (BF2). Raises Invalid,
        Unavailable."""
        platform, inputs, outputs = asked.values("platform", "input", "output")
        check_platform(platform, asked.name)
        if platform == GRAPH:
            return None
        tag, wanted = (asked.parameters.get(key, "") for key in (_TAG, _SIGNATURE))
        signature = read_signature(folder.version / filename, asked.name, tag, wanted)
        described = describe_signature(signature, asked.name, inputs, outputs, filename)
        _warn_of_signature(signature, wanted, asked.name)
        return described

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """Files that are missing or broken, and what differs from the configuration. The runtime is not started."""
        platform, inputs, outputs = asked.values("platform", "input", "output")
        if platform not in (SAVED_MODEL, GRAPH):  # the check of the configuration itself tells this
            return []
        try:
            signature = _signature(asked, folder, filename, platform)
            if platform == SAVED_MODEL:
                describe_signature(signature, asked.name, inputs, outputs, filename)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return [] if config is None else [Fault(str(each)) for each in problems(config, signature, platform == GRAPH)]

    def runs_code(self, asked: Incomplete) -> bool:
        """`describe` only reads a file."""
        return False

    def open(self, config: ModelConfig, folder: ModelFolder) -> TensorFlowModel:
        """Raises Invalid if the configuration does not fit the model, Unavailable, Unsupported, Internal."""
        check_platform(config.platform, config.name)
        signature = _signature(config, folder, config.model_filename, config.platform)
        for problem in problems(config, signature, config.platform == GRAPH):
            raise problem.blaming(Cause.CONFIGURATION)
        plan = plan_session(config, folder, self.context.settings)
        for warning in plan.warnings:
            log.warning("%s", warning)
        try:
            import tensorflow  # noqa: F401 - a missing runtime must be told before an instance needs it
        except ImportError as error:
            raise missing_runtime(TRAITS, error) from error
        return TensorFlowModel(config, folder, signature, plan)


def _signature(config: Incomplete | ModelConfig, folder: ModelFolder, filename: str, platform: str) -> Signature:
    if platform == GRAPH:
        return read_graph(folder.version / filename, config.name)
    tag, wanted = (config.parameters.get(key, "") for key in (_TAG, _SIGNATURE))
    return read_signature(folder.version / filename, config.name, tag, wanted)


def _warn_of_signature(signature: Signature, wanted: str, model: str) -> None:
    if not wanted and signature.name != "serving_default":
        log.warning("model '%s' has no signature 'serving_default': '%s' is used", model, signature.name)
