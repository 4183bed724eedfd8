"""auto_complete_config: the ModelConfig object that a model fills in (contract: python_backend, 2.2).

The words of every refusal are the reference's. What of it goes into the config is in completion.py.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["PbModelConfig"]


class PbModelConfig:
    """The config that `auto_complete_config` is given and has to return. `model_config`: the config as a JSON string."""

    __module__ = "triton_python_backend_utils"

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the config as a dictionary."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch. ValueError when the config says more."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Switch dynamic batching on. ValueError when the config has another scheduler."""
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but auto-complete-config function for model "
                    f"'{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input with `name`, `data_type`, `dims` and perhaps `optional`. ValueError when the config contradicts."""
        self._add(
            "input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'"
        )

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output with `name`, `data_type` and `dims`. ValueError when the config contradicts."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set `decoupled`. ValueError when the config says otherwise."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' "
                "contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", decoupled) != decoupled:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is already "
                    f"set to '{policy['decoupled']}'."
                )
            policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, new: dict[str, Any], allowed: tuple[str, ...], listed: str) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if set(new) - set(allowed):
            raise ValueError(f"{kind} '{new['name']}' {where} contains property other than {listed}.")
        if "name" not in new:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = new["name"]
        for key in ("data_type", "dims"):
            if key not in new:
                raise ValueError(f"{kind} '{name}' {where} is missing '{key}' property.")
        for known in self._model_config.setdefault(kind, []):
            if known["name"] == name:
                self._merge(kind, known, new)
                return
        self._model_config[kind].append(dict(new))

    def _merge(self, kind: str, known: dict[str, Any], new: dict[str, Any]) -> None:
        model, name = self._name, new["name"]
        if known.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", new["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {known['data_type']} for {kind} '{name}', "
                f"model provides {new['data_type']}"
            )
        if known.get("dims") and list(known["dims"]) != list(new["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {new['dims']} "
                f"but the model configuration specifies dims {known['dims']}"
            )
        if "optional" in new and known.get("optional", new["optional"]) != new["optional"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {new['optional']} "
                f"but the model configuration specifies optional {known['optional']}"
            )
        known.update(new)


PbModelConfig.__name__ = PbModelConfig.__qualname__ = "ModelConfig"
