"""The states of a model (ReadValue and Assign) as inputs and outputs, so that the server keeps them for each sequence
(S67). Load threads."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from halimede.backends.openvino.errors import step
from halimede.backends.openvino.runtime import ov
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Invalid


def variables_of(model: Any) -> dict[str, Any]:
    """The states by name: each is kept by the runtime for each instance."""
    return {variable.info.variable_id: variable for variable in model.get_variables()}


def state_problems(model: Any, config: ModelConfig) -> Iterator[Invalid]:
    """States that the server would have to keep and cannot, or that would mix sequences."""
    if config.sequence_batching is None:
        return  # the runtime keeps the states of an instance, as in Triton
    kept = {state.input_name: state for state in config.states}
    for name in variables_of(model):
        if name not in kept:
            yield Invalid(
                f"model '{config.name}' keeps the state '{name}', which sequence_batching does not list: add state "
                f'{{ input_name: "{name}" output_name: "{name}" }} with its data_type and dims'
            ).blaming(Cause.CONFIGURATION)
        elif kept[name].initial is None and _starts_with_other_than_zeros(model, name):
            yield Invalid(
                f"state '{name}' of model '{config.name}' does not begin with zeros: set its initial_state"
            ).blaming(Cause.CONFIGURATION)


def expose_states(model: Any, config: ModelConfig) -> None:
    """Makes each state that the configuration lists an input and an output of the model. A model that already has them
    as inputs and outputs stays as it is."""
    variables = variables_of(model)
    for state in config.states:
        variable = variables.get(state.input_name)
        if variable is None:
            continue
        with step(f"exposing state {state.input_name}"):
            info = variable.info
            given = ov.opset15.parameter(info.data_shape, info.data_type, name=state.input_name)
            given.output(0).get_tensor().set_names({state.input_name})
            for node in _nodes(model, "ReadValue", state.input_name):
                for reader in node.output(0).get_target_inputs():
                    reader.replace_source_output(given.output(0))
            for node in _nodes(model, "Assign", state.input_name):
                after = node.input_value(0)
                tensor = after.get_tensor()
                tensor.set_names({*tensor.names, state.output_name})
                model.add_results([ov.opset15.result(after)])
                model.remove_sink(node)
            model.add_parameters([given])
            model.remove_variable(variable)
            model.validate_nodes_and_infer_types()


def _nodes(model: Any, kind: str, name: str) -> list[Any]:
    return [
        node
        for node in model.get_ops()
        if node.get_type_name() == kind and node.get_attributes().get("variable_id") == name
    ]


def _starts_with_other_than_zeros(model: Any, name: str) -> bool:
    """Whether the value of a state before its first assignment is known, and is not zero."""
    for node in _nodes(model, "ReadValue", name):
        for source in node.input_values():
            constant = source.get_node()
            if constant.get_type_name() == "Constant" and np.any(constant.get_data() != 0):
                return True
    return False
