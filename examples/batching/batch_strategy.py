"""Batches of no more than so many bytes of inputs: lay this file beside a model's config.pbtxt, or in a version's
folder.

The model needs a dynamic batcher, and may say how much:

    dynamic_batching { max_queue_delay_microseconds: 2000 }
    parameters { key: "MAX_BATCH_BYTES" value { string_value: "1048576" } }

The server makes one BatchStrategy for each version of the model and calls it on its event loop, so each call must be
quick. A request is given with its `id`, `batch_size`, `parameters`, `inputs` (by name, each with `datatype`, `shape`
and `byte_size`) and `byte_size`, the sum of its inputs'.
"""

from typing import Any

DEFAULT_BYTES = 1 << 20


class BatchStrategy:
    def __init__(self, model_config: dict[str, Any]) -> None:
        parameter = model_config.get("parameters", {}).get("MAX_BATCH_BYTES", {})
        self.most = int(parameter.get("string_value", DEFAULT_BYTES))
        self.bytes = 0

    def start(self) -> None:
        """A batch begins to be formed."""
        self.bytes = 0

    def include(self, request: Any) -> bool:
        """Whether the request may be in the batch. The first one is, whatever is said."""
        self.bytes += request.byte_size
        return bool(self.bytes <= self.most)

    def finish(self) -> None:
        """The batch runs, or waits for more and is formed anew."""
