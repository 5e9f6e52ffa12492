"""A request as a function sees it that is bound with `pass_requests=True`. Used on the thread of its instance."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from halimede.backends.api import Arrays, BatchedRequest
from halimede.requests import Parameter


class Request(Mapping[str, npt.NDArray[Any]]):
    """One request of a batch: its inputs by name, and what came with them.

    id -- the client's id of the request, or ""
    parameters -- the client's parameters, and the headers that --http-header-forward-pattern or
        --grpc-header-forward-pattern selects
    correlation_id, sequence_start, sequence_end -- its place in a sequence; the id is 0 without one
    outputs -- the names of the outputs that the client wants
    batch_size -- the number of its rows, or 1 if the model has no batch dimension
    """

    __slots__ = (
        "_arrays",
        "_one",
        "batch_size",
        "correlation_id",
        "id",
        "outputs",
        "parameters",
        "sequence_end",
        "sequence_start",
    )

    def __init__(self, one: BatchedRequest, arrays: Arrays) -> None:
        asked = one.request
        self._arrays = arrays
        self._one = one
        self.id = asked.id
        self.parameters: Mapping[str, Parameter] = dict(asked.parameters or {})
        self.correlation_id = asked.correlation_id
        self.sequence_start = asked.sequence_start
        self.sequence_end = asked.sequence_end
        self.outputs = tuple(one.outputs)
        self.batch_size = max(1, one.batch_size)

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone, so that nobody reads the answer."""
        return self._one.cancelled

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Request(id={self.id!r}, inputs={list(self._arrays)}, parameters={self.parameters})"
