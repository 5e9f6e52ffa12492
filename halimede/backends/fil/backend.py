"""The `fil` backend: forests on the CPU, or on a GPU where nvforest is installed.

`open` and `create_instance` run on load threads, `execute` on an instance's thread, or on the event loop while it is
measured to be quick. All instances of a version share the forest; a predictor takes any number of threads at once.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from halimede.backends.api import (
    Arrays,
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    Fault,
    InstancePlace,
    ModelFolder,
    Responses,
    cpu_share,
)
from halimede.backends.fil import TRAITS
from halimede.backends.fil.answers import (
    INPUT,
    OUTPUT,
    SHAP,
    Answer,
    OutputShape,
    answer_of,
    answered,
    check_input,
    check_outputs,
    output_shape,
    usual_size,
)
from halimede.backends.fil.forest import Forest, read_forest
from halimede.backends.fil.gpu import NvForest, has_nvforest
from halimede.backends.fil.graph import graph_of
from halimede.backends.fil.predictor import GraphForest, Gtil, Predictor
from halimede.backends.fil.settings import Settings, file_of, settings_of, warnings_of
from halimede.backends.fil.shap import Shap
from halimede.config.model_config import DescribedTensor, Description, Incomplete, InstanceKind, ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid
from halimede.tensors import FP32

log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 8192
"""Of a completed configuration. A row is small, and a forest is faster the more rows it gets."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a batch is answered. `refusal` is the text with which all requests fail, as in Triton, which finds out only
    when it runs; empty if there is none."""

    features: int
    threshold: float
    answer: Answer = Answer.VALUES
    output: OutputShape | None = None
    shap: OutputShape | None = None
    refusal: str = ""


class ForestInstance(BaseInstance):
    """One instance: the predictor of its device."""

    def __init__(self, plan: Plan, predictor: Predictor, shap: Shap | None) -> None:
        self._plan = plan
        self._predictor: Predictor | None = predictor
        self._shap = shap

    def execute(self, batch: Batch, responses: Responses) -> None:
        plan, predictor = self._plan, self._predictor
        if plan.refusal:
            raise Internal(plan.refusal)
        assert predictor is not None, "this instance is closed"
        rows = batch.arrays()[INPUT]
        if rows.shape[-1:] != (plan.features,):
            given = rows.shape[-1] if rows.ndim else 0
            raise Invalid(f"'{INPUT}' has {given} numbers in a row, and the model has {plan.features} features")
        rows = rows.reshape(-1, plan.features)
        wanted = batch.requests[0].outputs
        if len(batch.requests) > 1:
            wanted = list(set().union(*[one.outputs for one in batch.requests]))
        outputs: Arrays = {}
        if plan.output is not None and OUTPUT in wanted:
            values = answered(predictor.predict(rows), plan.answer, plan.threshold)
            outputs[OUTPUT] = plan.output.shaped(values)
        if plan.shap is not None and self._shap is not None and SHAP in wanted:
            outputs[SHAP] = plan.shap.shaped(self._shap(rows))
        responses.scatter(outputs)

    def close(self) -> None:
        """Lets go of the forest, which is the model's."""
        self._predictor = self._shap = None


class ForestModel(BaseModel):
    """A version of a forest."""

    inline_safe = True

    def __init__(self, config: ModelConfig, forest: Forest, settings: Settings, plan: Plan) -> None:
        self._config, self._forest, self._settings, self._plan = config, forest, settings, plan
        self._shap = Shap(forest) if plan.shap is not None else None
        self._graph = graph_of(forest)
        self._on_cpu: dict[str, Predictor] = {}
        """By host policy: instances on the same cores share it."""

    def create_instance(self, place: InstancePlace) -> ForestInstance:
        return ForestInstance(self._plan, self._predictor(place), self._shap)

    def _predictor(self, place: InstancePlace) -> Predictor:
        settings = self._settings
        if place.kind is InstanceKind.GPU:
            return NvForest(self._forest, place.device_id, settings)
        if place.host_policy not in self._on_cpu:
            threads = settings.threads
            if threads < 1:
                threads = cpu_share(self._config.instances_beside(place.host_policy)).threads
            graph = self._graph
            self._on_cpu[place.host_policy] = (
                Gtil(self._forest, threads) if graph is None else GraphForest(graph, threads)
            )
        return self._on_cpu[place.host_policy]

    def close(self) -> None:
        self._on_cpu.clear()


class ForestBackend(BaseBackend):
    """Opens forests."""

    traits = TRAITS

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """All, if nvforest is installed."""
        return gpus if has_nvforest() else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        """One row of features in, and out a value, or the probability of each class. Triton has no completion for
        forests (BX1)."""
        settings = settings_of(asked.parameters)
        file, kind = file_of(settings, filename)
        forest = read_forest(folder.version / file, kind, settings.allow_unknown_field)
        size = 1 if settings.is_classifier and not settings.predict_proba else usual_size(forest)
        if settings.is_classifier is False:
            size = forest.classes
        inputs = DescribedTensor(INPUT, FP32, (-1, forest.features))
        outputs = DescribedTensor(OUTPUT, FP32, (-1, size))
        limit = max(int(asked.value("max_batch_size") or 0), MAX_BATCH_SIZE)
        return Description((inputs,), (outputs,), max_batch_size=limit, source=file)

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """What a load would refuse, and what would fail each request."""
        try:
            settings = settings_of(asked.parameters)
            file, kind = file_of(settings, filename)
            forest = read_forest(folder.version / file, kind, settings.allow_unknown_field)
            plan = None if config is None else plan_of(config, forest, settings)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return [Fault(plan.refusal, cause=Cause.CONFIGURATION)] if plan is not None and plan.refusal else []

    def open(self, config: ModelConfig, folder: ModelFolder) -> ForestModel:
        """Raises Invalid if the configuration does not fit the forest, Unavailable, Unknown, Unsupported, Internal."""
        settings = settings_of(config.parameters)
        for line in warnings_of(config.parameters):
            log.warning("model '%s': %s", config.name, line)
        file, kind = file_of(settings, config.model_filename)
        forest = read_forest(folder.version / file, kind, settings.allow_unknown_field)
        plan = plan_of(config, forest, settings)
        if settings.predict_proba:
            forest.make_probabilities()
        return ForestModel(config, forest, settings, plan)


def plan_of(config: ModelConfig, forest: Forest, settings: Settings) -> Plan:
    """Raises Invalid if the configuration does not fit the forest."""
    check_input(config, forest)
    specs = {spec.name: spec for spec in config.outputs}
    given = config.inputs[0].datatype
    try:
        if given is not FP32:
            raise Internal(f"incorrect type {given} for input with required type FP32")
        if OUTPUT not in specs:
            raise Internal(f"No output with name {OUTPUT} in configuration.")
        output = output_shape(specs[OUTPUT], config.max_batch_size)
        shap = output_shape(specs[SHAP], config.max_batch_size) if SHAP in specs else None
    except Internal as error:  # Triton finds out when a request comes
        return Plan(forest.features, settings.threshold, refusal=str(error))
    check_outputs(specs, forest, shap)
    return Plan(forest.features, settings.threshold, answer_of(forest, settings, output.row), output, shap)
