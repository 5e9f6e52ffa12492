"""The metrics that a model makes for itself (P57 to P59): `MetricFamily` and `Metric`.

The server keeps the values. The classes here know it as a `MetricKeeper`: to make or read something is a question, to
change it is a message without an answer. Arguments are checked before anything is sent. Any thread.
"""

from __future__ import annotations

import enum
import json
from contextlib import suppress
from typing import Any, ClassVar, Protocol, SupportsFloat

from .signatures import MISSING, MODULE, NO_CAST, Refused, constructor, native, refusal, text
from .values import TritonModelException


class MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    __str__ = enum.Enum.__str__  # whatever this Python thinks of it
    __format__ = object.__format__  # type: ignore[assignment]  # the same in an f-string


INCREMENT, SET, OBSERVE, DROP = range(1, 5)
"""What can be done to a metric. DROP, of a metric or a family, says that the model no longer refers to it."""


class MetricKeeper(Protocol):
    """The place of the values, for one instance of a model. `instance` is its name."""

    instance: str

    def make_family(self, name: str, description: str, kind: int) -> int:
        """A new family; returns its number. Blocks. Raises TritonModelException."""
        ...

    def make_metric(self, family: int, labels: str, buckets: list[float]) -> int:
        """A new metric of a family; returns its number. `labels` is a JSON object. Blocks. Raises
        TritonModelException."""
        ...

    def value(self, metric: int) -> float:
        """The value of a metric. Blocks. Raises TritonModelException."""
        ...

    def change(self, metric: int, what: int, amount: float) -> None:
        """Changes a metric. Does not wait for an answer."""
        ...

    def drop(self, number: int) -> None:
        """Gives a metric back, or a family with its metrics. A finalizer may call this."""
        ...


class _Life:
    """What a family and its metrics share: the keeper, and whether the family still exists."""

    __slots__ = ("keeper", "number", "open")

    def __init__(self, keeper: MetricKeeper) -> None:
        self.keeper = keeper
        self.number = 0
        self.open = False

    def drop(self, number: int) -> None:
        """Gives something back. Called by finalizers: if the server is gone, there is nothing to give back."""
        with suppress(OSError):
            self.keeper.drop(number)


class Metric:
    """One series of a family, which makes it. It ends with its family, or when the model drops it."""

    __slots__ = ("_kind", "_life", "_number")

    _life: _Life
    _kind: MetricKind
    _number: int

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(f"{type(self).__module__}.{type(self).__name__}: No constructor defined!")

    @classmethod
    def _made(cls, life: _Life, kind: MetricKind, number: int) -> Metric:
        metric = cls.__new__(cls)
        metric._life = life
        metric._kind = kind
        metric._number = number
        return metric

    def increment(self, value: SupportsFloat = MISSING, /) -> None:
        """Adds to a counter (0 or more) or to a gauge. Raises TritonModelException."""
        amount = self._checked("increment", value)
        if self._kind is MetricKind.HISTOGRAM:
            raise self._failed("increment", self._has_no("Increment"))
        if amount < 0 and self._kind is MetricKind.COUNTER:
            raise self._failed("increment", _MONOTONIC)
        self._life.keeper.change(self._number, INCREMENT, amount)

    def set(self, value: SupportsFloat = MISSING, /) -> None:
        """Sets a gauge. Raises TritonModelException."""
        amount = self._checked("set", value)
        if self._kind is not MetricKind.GAUGE:
            raise self._failed("set", self._has_no("Set"))
        self._life.keeper.change(self._number, SET, amount)

    def observe(self, value: SupportsFloat = MISSING, /) -> None:
        """Adds an observation to a histogram. Raises TritonModelException."""
        amount = self._checked("observe", value)
        if self._kind is not MetricKind.HISTOGRAM:
            raise self._failed("observe", self._has_no("Observe"))
        self._life.keeper.change(self._number, OBSERVE, amount)

    def value(self) -> float:
        """The value of a counter or gauge, which all instances share. Raises TritonModelException."""
        self._check_open("get")
        if self._kind is MetricKind.HISTOGRAM:
            raise self._failed("get", self._has_no("Value"))
        return self._life.keeper.value(self._number)

    def _checked(self, verb: str, value: Any) -> float:
        try:
            amount = _as_float(value)
        except (TypeError, ValueError, OverflowError):
            given = (self,) if value is MISSING else (self, value)
            raise refusal(verb, f"(self: {MODULE}.Metric, arg0: float) -> None", given, {}) from None
        self._check_open(verb)
        return amount

    def _check_open(self, verb: str) -> None:
        if not self._life.open:
            raise TritonModelException(f"Failed to {verb} metric value: {_FAMILY_GONE}")

    def _has_no(self, operation: str) -> str:
        return f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}"

    def _failed(self, verb: str, text: str) -> TritonModelException:
        instance = self._life.keeper.instance
        return TritonModelException(
            f"Failed to {verb} metric value: Failed to process the request for model '{instance}', message: {text}"
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__name__}' object")

    def __del__(self) -> None:
        life: _Life | None = getattr(self, "_life", None)
        if life is not None and life.open:
            life.drop(self._number)


_Metric = Metric
"""The class `Metric`, for use inside `MetricFamily`, which has a method of that name."""


class MetricFamily:
    """Metrics of one name that differ by their labels. If the name exists already, this is another handle of the same
    family. The metrics that it made end with it. Raises TritonModelException."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    __slots__ = ("_kind", "_life")

    _keeper: ClassVar[MetricKeeper | None] = None
    """None while a configuration is completed."""

    @constructor(f"MetricFamily(name: str, description: str, kind: {MODULE}.MetricKind)")
    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name, description = text(name), text(description)
        if not isinstance(kind, MetricKind):
            raise Refused
        keeper = self._keeper
        if keeper is None:
            raise TritonModelException(f"Error when creating MetricFamily: {_NOT_HERE}")
        self._kind = kind
        self._life = life = _Life(keeper)
        life.number = keeper.make_family(name, description, int(kind))
        life.open = True

    @native(f"(self: {MODULE}.MetricFamily, labels: object = None, buckets: object = None) -> {MODULE}.Metric")
    def Metric(  # noqa: N802  # the interface's name
        self, labels: dict[str, str] | None = None, buckets: list[Any] | None = None
    ) -> _Metric:
        """The series with these labels; another instance may have made it. `buckets` are the bounds of a histogram, in
        ascending order. Raises TritonModelException."""
        bounds = self._bounds(labels, buckets)
        life = self._life
        number = life.keeper.make_metric(life.number, json.dumps(labels or {}), bounds)
        return Metric._made(life, self._kind, number)

    def _bounds(self, labels: Any, buckets: Any) -> list[float]:
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if self._kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            return []
        if buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        try:
            return [_as_float(bound) for bound in buckets]
        except (TypeError, ValueError, OverflowError):
            raise RuntimeError(NO_CAST) from None

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__name__}' object")

    def __del__(self) -> None:
        life: _Life | None = getattr(self, "_life", None)
        if life is not None and life.open:
            life.open = False
            life.drop(life.number)


def family_type(keeper: MetricKeeper | None, module: str) -> type[MetricFamily]:
    """The class `MetricFamily` of one instance. Without a keeper it can make no families."""
    return type("MetricFamily", (MetricFamily,), {"__slots__": (), "_keeper": keeper, "__module__": module})


def _as_float(value: Any) -> float:
    """The number as a float. Raises TypeError for a text, ValueError, OverflowError."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("a text is no number")
    return float(value)


_MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
_FAMILY_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
_NOT_HERE = "it is not possible while a configuration is completed."
