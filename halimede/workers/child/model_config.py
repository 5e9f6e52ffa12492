"""What `auto_complete_config` may change of a model's configuration (P31), and its rules for conflicts."""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """A model configuration as JSON values, made from JSON text, to be completed. What a model sets must agree
    with what is there."""

    def __init__(self, model_config: str) -> None:
        # Models write to this attribute, under this name: other fields have no method.
        self._model_config: dict[str, Any] = json.loads(model_config)
        self._name = str(self._model_config.get("name", ""))
        self._where = f"in auto-complete-config function for model '{self._name}'"

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError if the configuration says more."""
        present = int(self._model_config.get("max_batch_size", 0))
        if present > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {present}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError if the configuration chose another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """`name`, `data_type`, `dims` and, if wanted, `optional`. Raises ValueError."""
        self._check("input", input, ("name", "data_type", "dims", "optional"))
        self._merge("input", input)

    def add_output(self, output: dict[str, Any]) -> None:
        """`name`, `data_type` and `dims`. Raises ValueError."""
        self._check("output", output, ("name", "data_type", "dims"))
        self._merge("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """`decoupled`. Raises ValueError if the configuration says the opposite."""
        for key in transaction_policy_dict.keys():  # noqa: SIM118  # a list is refused
            if key != "decoupled":
                raise ValueError(f"model transaction property {self._where} contains property other than 'decoupled'.")
        present = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if present.setdefault("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', "
                f"which is already set to '{present['decoupled']}'."
            )

    def _check(self, which: str, tensor: dict[str, Any], allowed: tuple[str, ...]) -> None:
        where = self._where
        if any(key not in allowed for key in tensor):
            names = ", ".join(f"'{key}'" for key in allowed[:-1])
            raise ValueError(
                f"{which} '{tensor['name']}' {where} contains property other than {names} and '{allowed[-1]}'."
            )
        if "name" not in tensor:
            raise ValueError(f"{which} {where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{which} '{tensor['name']}' {where} is missing '{key}' property.")

    def _merge(self, which: str, tensor: dict[str, Any]) -> None:
        for present in self._model_config.setdefault(which, []):
            if present["name"] == tensor["name"]:
                self._complete(which, present, tensor)
                return
        self._model_config[which].append(dict(tensor))

    def _complete(self, which: str, present: dict[str, Any], tensor: dict[str, Any]) -> None:
        """Fills what `present` leaves open. Values that both have must be equal."""
        name = tensor["name"]
        datatype = present.get("data_type", "TYPE_INVALID")
        if datatype == "TYPE_INVALID":
            present["data_type"] = tensor["data_type"]
        elif datatype != tensor["data_type"]:
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {datatype} for {which} '{name}', "
                f"model provides {tensor['data_type']}"
            )
        dims = [int(size) for size in present.get("dims", [])]
        if not dims:
            present["dims"] = tensor["dims"]
        elif dims != [int(size) for size in tensor["dims"]]:
            self._differs(name, "dims", tensor["dims"], dims)
        if "optional" in tensor and "optional" in present:
            if bool(present["optional"]) != bool(tensor["optional"]):
                self._differs(name, "optional", tensor["optional"], present["optional"])
        elif "optional" in tensor:
            present["optional"] = tensor["optional"]

    def _differs(self, name: str, what: str, provided: Any, configured: Any) -> None:
        raise ValueError(
            f"model '{self._name}', tensor '{name}': the model expects {what} {provided} but the model configuration "
            f"specifies {what} {configured}"
        )
