"""The file of `--profile-export-file` (X29). Pure, except for the writing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halimede.perf.kinds import BODIES, body_text, reader_of
from halimede.perf.loads import FAILED
from halimede.perf.options import Options
from halimede.perf.profiler import Experiment
from halimede.perf.requests import Tensor, unframed
from halimede.perf.statistics import END, FLAGS, NUMBER, SEQUENCE, START
from halimede.tensors import BF16, BYTES, FP16, datatype_named

Tensors = Sequence[Sequence[Sequence[Tensor]]]


def export_document(
    experiments: Sequence[Experiment], options: Options, tensors: Tensors, clock_offset: int, version: str
) -> dict[str, Any]:
    """All requests of all levels. `clock_offset` makes wall-clock times of the records' times."""
    return {
        "experiments": [_experiment(each, options, tensors, clock_offset) for each in experiments],
        "version": version,
        "service_kind": options.kind,
        "endpoint": options.endpoint,
    }


def _experiment(experiment: Experiment, options: Options, tensors: Tensors, offset: int) -> dict[str, Any]:
    mode = "request_rate" if experiment.is_rate else "concurrency"
    value = experiment.value if experiment.is_rate else int(experiment.value)
    return {
        "experiment": {"mode": mode, "value": value},
        "requests": list(_requests(experiment, options, tensors, offset)),
        "window_boundaries": [each + offset for each in experiment.boundaries],
    }


def _requests(experiment: Experiment, options: Options, tensors: Tensors, offset: int) -> Iterator[dict[str, Any]]:
    details = {each.number: each for each in experiment.details}
    inputs = [[_inputs(each, options) for each in stream] for stream in tensors]
    for records in experiment.records:
        for record in records[np.argsort(records[:, START])]:
            if record[FLAGS] & FAILED:
                continue
            detail = details.get(int(record[NUMBER]))
            if detail is None:
                continue
            found: dict[str, Any] = {"timestamp": int(record[START]) + offset}
            if record[SEQUENCE]:
                found["sequence_id"] = int(record[SEQUENCE])
            found["request_inputs"] = inputs[detail.stream][detail.step]
            stamps = detail.stamps or (int(record[END]),)
            found["response_timestamps"] = [each + offset for each in stamps]
            found["response_outputs"] = [_outputs(body, options) for body in detail.bodies]
            yield found


def _inputs(tensors: Sequence[Tensor], options: Options) -> dict[str, Any]:
    if options.kind in BODIES:
        return {each.info.name: body_text(each.content, options) for each in tensors}
    return {each.info.name: plain(each.content, each.info.datatype.name) for each in tensors}


def _outputs(body: bytes, options: Options) -> dict[str, Any]:
    if options.kind in BODIES:
        return {"response": body_text(body, options)}
    return {name: plain(content, datatype) for name, (datatype, content) in reader_of(options)(body).items()}


def plain(content: bytes, name: str) -> Any:
    """The elements for JSON: one alone, or a flat list. Strings are one text; FP16 and BF16 have no form."""
    datatype = datatype_named(name)
    if datatype is BYTES or name == "JSON":
        return b"".join(unframed(content)).decode("utf-8", "replace") if datatype is BYTES else content.decode()
    if datatype in (FP16, BF16) or not datatype.size:
        return ""
    values = np.frombuffer(content, datatype.numpy).tolist()
    return values[0] if len(values) == 1 else values or ""


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a document."""
    with path.open("w") as file:
        json.dump(document, file, separators=(",", ":"))
