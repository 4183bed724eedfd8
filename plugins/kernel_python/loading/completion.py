"""What goes into a model's config of what its `auto_complete_config` has filled in (contract: python_backend, 2.2)."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from kernel import Code, ModelConfig, ServingError, with_changes

__all__ = ["completed"]


def completed(config: ModelConfig, filled: dict[str, Any]) -> ModelConfig:
    """Return the config with what the model has filled in: batch size, inputs, outputs, dynamic batching, decoupled.

    Raises ServingError(INVALID_ARG) for values that no config may hold.
    """

    def change(message: Any) -> None:
        message.max_batch_size = filled["max_batch_size"]
        for kind in ("input", "output"):
            known = {one.name: one for one in getattr(message, kind)}
            for entry in filled.get(kind, ()):
                target = known.get(entry["name"])
                if target is None:
                    target = getattr(message, kind).add()
                    target.name = entry["name"]
                fields = {key: entry[key] for key in ("data_type", "dims", "optional") if key in entry}
                target.ClearField("dims")
                json_format.ParseDict(fields, target)
        if "dynamic_batching" in filled and not message.HasField("dynamic_batching"):
            message.dynamic_batching.SetInParent()
        if "model_transaction_policy" in filled:
            message.model_transaction_policy.decoupled = bool(
                filled["model_transaction_policy"].get("decoupled", False)
            )

    try:
        return with_changes(config, change)
    except (json_format.ParseError, TypeError, ValueError, KeyError) as error:
        raise ServingError(
            Code.INVALID_ARG,
            f"auto_complete_config function in model '{config.name}' has set what no config may hold: {error}",
        ) from error
