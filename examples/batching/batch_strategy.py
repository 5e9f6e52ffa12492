"""Limits batches by the bytes of their inputs. Put this file next to a model's config.pbtxt, or into a version folder.

The model needs a dynamic batcher, and may set the limit:

    dynamic_batching { max_queue_delay_microseconds: 2000 }
    parameters { key: "MAX_BATCH_BYTES" value { string_value: "1048576" } }

The server creates one BatchStrategy for each version of the model and calls it on its event loop, so each call must be
quick. A request has `id`, `batch_size`, `parameters`, `inputs` (by name, each with `datatype`, `shape` and `byte_size`)
and `byte_size`, the sum over its inputs.
"""

from typing import Any

DEFAULT_BYTES = 1 << 20


class BatchStrategy:
    """Adds requests to a batch until their inputs would exceed the limit."""

    def __init__(self, model_config: dict[str, Any]) -> None:
        parameter = model_config.get("parameters", {}).get("MAX_BATCH_BYTES", {})
        self.most = int(parameter.get("string_value", DEFAULT_BYTES))
        self.bytes = 0

    def start(self) -> None:
        """Called before the first request of a batch."""
        self.bytes = 0

    def include(self, request: Any) -> bool:
        """Whether the request may join the batch. The first request always joins, whatever this returns."""
        self.bytes += request.byte_size
        return bool(self.bytes <= self.most)

    def finish(self) -> None:
        """Called at the end: the batch runs, or it waits for more requests and is formed again from the start."""
