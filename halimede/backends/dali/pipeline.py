"""A pipeline that runs batches. One thread at a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline

from halimede.errors import Cause, Invalid, Unknown

Array = npt.NDArray[Any]
Samples = Mapping[str, Sequence[Array]]

_NO_MORE = "No data was provided to the InputOperator"
"""What DALI says when a pipeline runs and its inputs are used up."""


class Output:
    """An output of one run: a sample for each sample of the inputs. A copy, because DALI uses its memory again."""

    def __init__(self, found: Any) -> None:
        host = found.as_cpu() if hasattr(found, "as_cpu") else found
        self._whole: Array | None = np.array(host.as_array()) if host.is_dense_tensor() else None
        self._samples = [] if self._whole is not None else [np.array(host.at(i)) for i in range(len(host))]

    def __len__(self) -> int:
        return len(self._samples if self._whole is None else self._whole)

    def rows(self, start: int, end: int, name: str) -> Array:
        """The samples of one request as an array. Raises Invalid if their shapes differ: a tensor has one (BD8)."""
        if self._whole is not None:
            return self._whole[start:end]
        samples = self._samples[start:end]
        shapes = {sample.shape for sample in samples}
        if len(shapes) > 1:
            raise Invalid(
                f"DALI Backend error: the samples of output '{name}' have different shapes in one request: "
                f"{', '.join(map(str, sorted(shapes)))}; send them in requests of their own"
            )
        return np.stack(samples) if samples else np.empty((0,))

    def joined(self, start: int, end: int) -> Array:
        """The samples of one request along their first dimension (BD9)."""
        samples = list(self._whole[start:end]) if self._whole is not None else self._samples[start:end]
        return np.concatenate(samples)


class RunningPipeline:
    """A pipeline on a device (None: the CPU). Raises Unknown if it cannot be made there.

    After a failure it is made anew, because DALI does not run a pipeline again that has failed."""

    def __init__(self, serialized: bytes, batch_size: int, threads: int, device: int | None) -> None:
        self._serialized = serialized
        self._options = {
            "batch_size": batch_size,
            "device_id": device,
            # One run at a time, and nothing ahead of it: the next batch is not known yet.
            "prefetch_queue_depth": 1,
            "exec_pipelined": False,
            "exec_async": False,
            **({"num_threads": threads} if threads > 0 else {}),
        }
        self._pipeline: Any = None
        self._make()

    def run(self, inputs: Samples) -> list[Output]:
        """The outputs for these samples. Raises Unknown."""
        outputs = self._guarded(inputs)
        assert outputs is not None
        return outputs

    def stream(self, inputs: Samples) -> Iterator[list[Output]]:
        """The outputs of each run, until the inputs are used up. Raises Unknown."""
        outputs = self._guarded(inputs)
        while outputs is not None:
            yield outputs
            outputs = self._guarded({})

    def close(self) -> None:
        self._pipeline = None

    def _make(self) -> Any:
        if self._pipeline is None:
            try:
                pipeline = Pipeline.deserialize(self._serialized, **self._options)
                pipeline.build()
            except Exception as error:
                text = f"DALI Backend error: Error while instantiating DALI pipeline: {error}"
                raise Unknown(text).blaming(Cause.FILE) from error
            self._pipeline = pipeline
        return self._pipeline

    def _guarded(self, inputs: Samples) -> list[Output] | None:
        """The outputs of a run, None if there is no more data for one."""
        pipeline = self._make()
        try:
            for name, samples in inputs.items():
                pipeline.feed_input(name, list(samples))
            return [Output(each) for each in pipeline.run()]
        except Exception as error:
            self._pipeline = None
            if not inputs and _NO_MORE in str(error):
                return None
            raise Unknown(f"DALI error: {error}") from error
