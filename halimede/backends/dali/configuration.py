"""Completes and checks the configuration of a pipeline (BD3 to BD7, BD9). Pure, except that it may read the file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.errors import Cause, Error, Invalid, Unknown

_UNKNOWN = "TYPE_INVALID"
_DIGITS = re.compile(r"\s*([+-]?\d+)")
_BATCH_FIELD = re.compile(r"^\s*max_batch_size\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PipelineTensor:
    """An input or output as a pipeline declares it. `datatype` is the word of a configuration, or empty; `ndim` is that
    of a sample, or None."""

    name: str
    datatype: str = ""
    ndim: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """What a pipeline declares about itself."""

    inputs: tuple[PipelineTensor, ...]
    outputs: tuple[PipelineTensor, ...]
    max_batch_size: int
    has_video: bool = False
    """Whether one input may give several outputs."""


def error_of(text: str) -> Error:
    """An error of Triton's backend about a configuration."""
    return Unknown(f"DALI Backend error: {text}").blaming(Cause.CONFIGURATION)


def writes_batch_size(model: Path) -> bool:
    """Whether the file of the configuration has `max_batch_size`: 0 there means a pipeline without batches, and without
    it the pipeline's own batch size counts (BD7)."""
    try:
        return _BATCH_FIELD.search((model / "config.pbtxt").read_text()) is not None
    except (OSError, UnicodeDecodeError):
        return False


def completed(config: Mapping[str, Any], pipeline: PipelineShape, writes_size: bool) -> dict[str, Any]:
    """The fields of the configuration that the pipeline decides: batch size, inputs, outputs, and a dynamic batcher.
    Raises Unknown in Triton's words if they contradict each other."""
    given = int(config.get("max_batch_size", 0))
    size = given if given > 0 or writes_size else pipeline.max_batch_size
    found: dict[str, Any] = {
        "max_batch_size": size,
        "input": _inputs(config.get("input", ()), pipeline, size > 0),
        "output": _outputs(config.get("output", ()), pipeline, size > 0),
    }
    if size > 0 and not any(name in config for name in ("dynamic_batching", "sequence_batching")):
        found["dynamic_batching"] = {}
    return found


def check_inputs(config: Mapping[str, Any], pipeline: PipelineShape) -> None:
    """Raises Unknown in Triton's words if a complete configuration does not fit the pipeline."""
    size = int(config.get("max_batch_size", 0))
    listed = {spec["name"] for spec in config.get("input", ())}
    _inputs(config.get("input", ()), pipeline, size > 0)
    for tensor in pipeline.inputs:
        if tensor.name not in listed:
            raise error_of(f'Missing config for "{tensor.name}" input.')
    if len(_outputs(config.get("output", ()), pipeline, size > 0)) != len(config.get("output", ())):
        raise error_of(
            "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
            f"Model config outputs: {len(config.get('output', ()))}\nPipeline outputs: {len(pipeline.outputs)}"
        )


def _inputs(listed: Sequence[Mapping[str, Any]], pipeline: PipelineShape, batches: bool) -> list[dict[str, Any]]:
    known = {each.name: each for each in pipeline.inputs}
    found = []
    for spec in listed:
        if spec["name"] not in known:
            text = (
                f"Configuration file contains config for {spec['name']} but such input is not present in the pipeline."
            )
            raise error_of(text)
        found.append(_merged(spec, known.pop(spec["name"]), batches))
    found += [_merged({}, known[name], batches) for name in sorted(known)]
    return [{**each, "allow_ragged_batch": True} for each in found]


def _outputs(listed: Sequence[Mapping[str, Any]], pipeline: PipelineShape, batches: bool) -> list[dict[str, Any]]:
    if len(listed) > len(pipeline.outputs):
        raise error_of(
            "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
            f"Model config outputs: {len(listed)}\nPipeline outputs: {len(pipeline.outputs)}"
        )
    specs = [*listed, *[{}] * (len(pipeline.outputs) - len(listed))]
    return [_merged(spec, tensor, batches) for spec, tensor in zip(specs, pipeline.outputs, strict=True)]


def _merged(spec: Mapping[str, Any], tensor: PipelineTensor, batches: bool) -> dict[str, Any]:
    """What the configuration and the pipeline say of a tensor (BD5). Without batches the first dimension is that of the
    samples."""
    name = spec.get("name") or tensor.name
    datatype, dims = spec.get("data_type", ""), [int(size) for size in spec.get("dims", ())]
    datatype = "" if datatype == _UNKNOWN else datatype
    if datatype and tensor.datatype and tensor.datatype not in (datatype, _raw(datatype)):
        raise error_of(
            f'Mismatch of data_type config for "{name}".\nData type defined in config: {datatype}\n'
            f"Data type defined in pipeline: {tensor.datatype}"
        )
    if not (datatype or tensor.datatype):
        raise error_of(f'Missing data_type config for "{name}"')
    if tensor.ndim is not None:
        wanted = tensor.ndim + (0 if batches else 1)
        if dims and len(dims) != wanted:
            raise error_of(
                f'Mismatch in number of dimensions for "{name}"\nNumber of dimensions defined in config: {len(dims)}\n'
                f"Number of dimensions defined in pipeline: {wanted}"
            )
        dims = dims or [-1] * wanted or [1]
    if not dims:
        raise error_of(f'Missing dims config for "{name}"')
    return {**spec, "name": name, "data_type": datatype or tensor.datatype, "dims": dims}


def _raw(datatype: str) -> str:
    """What DALI gets of texts: their bytes (BD13)."""
    return "TYPE_UINT8" if datatype == "TYPE_STRING" else datatype


def whole(parameters: Mapping[str, str], name: str, default: int) -> int:
    """A number; text after its digits does not count (BD9). Raises Invalid."""
    text = parameters.get(name)
    if text is None:
        return default
    found = _DIGITS.match(text)
    if found is None:
        raise Invalid(f"DALI Backend error: parameter {name} is no number: '{text}'").blaming(Cause.CONFIGURATION)
    return int(found[1])


def names_of(parameters: Mapping[str, str], name: str) -> frozenset[str]:
    """Names with colons between them (BD9)."""
    return frozenset(each for each in parameters.get(name, "").split(":") if each)
