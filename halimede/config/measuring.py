"""What a configuration says of the metrics of its model: labels of its own, and the buckets of histograms (contract
R55, R61, M12, M27). Pure, any thread."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isnan
from types import MappingProxyType

from halimede.config.message import Message

_LABEL = re.compile(r"(?!_)[a-zA-Z0-9_]+")


def metric_problems(message: Message) -> Iterator[str]:
    """What is wrong with it. The real server dies of a tag that no label can be named after, and of buckets that do not
    ascend."""
    for key in sorted(message.metric_tags):
        if not _LABEL.fullmatch(key):
            yield f"model '{message.name}': the metric tag '{key}' cannot be the name of a label"
    for control in message.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            yield "metric control must specify 'metric_identifier'"
        if not control.metric_identifier.family:
            yield "metric identifier must specify non-empty 'family'"
        if not control.HasField("histogram_options"):
            yield "metric control must specify 'histogram_options'"
        bounds = control.histogram_options.buckets
        if not bounds:
            yield "histogram options must specify non-empty 'buckets'"
        if any(map(isnan, bounds)) or any(before >= after for before, after in pairwise(bounds)):
            yield f"model '{message.name}': 'buckets' of '{control.metric_identifier.family}' must ascend"


def tags_of(message: Message) -> Mapping[str, str]:
    """Label to value."""
    return MappingProxyType({f"_{key}": message.metric_tags[key] for key in sorted(message.metric_tags)})


def buckets_of(message: Message) -> Mapping[str, tuple[float, ...]]:
    """The upper bounds of the buckets of a histogram, by the name of its family; of one named twice the last."""
    return MappingProxyType(
        {
            control.metric_identifier.family: tuple(control.histogram_options.buckets)
            for control in message.model_metrics.metric_control
        }
    )
