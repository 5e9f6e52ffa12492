"""`halimede convert`: converts a model file, and compares the result with the original on random inputs. Blocks.

Both models are served for this by the backends here, in processes of their own (HOME child), so the comparison says
what clients would get.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.child.backend import ENVIRONMENT
from halimede.backends.child.settings import HOME, HOME_SETTING
from halimede.backends.conversion import Conversion
from halimede.backends.registry import conversions, resolve, served
from halimede.backends.traits import Home
from halimede.config import ModelConfig, TensorSpec, read
from halimede.devtools.new_config import VERSION
from halimede.devtools.outputs import numbers_of
from halimede.devtools.scaffold import begin, kind_of
from halimede.devtools.session import Session
from halimede.errors import Error, Invalid, Unavailable
from halimede.options import ServerOptions
from halimede.requests import InferRequest
from halimede.tensors import BF16, BOOL, BYTES, Tensor, array_of, tensor_of

_ROWS, _SIZE = 2, 5
"""Of a random input: rows of a batch, and a size that may be any."""
_MOST = 10
"""Random integers are below, so that they fit every datatype and the tables that they index."""
_CLOSE_SECONDS = 30.0

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Converted:
    """The file that was written. `difference` is the largest of all numbers in the outputs, `magnitude` the largest of
    the original's numbers, and `strings` how many strings differ; None if the outputs have none.

    `reason` says why nothing was compared; it is empty if it was, or if no backend here opens the original.
    """

    file: Path
    difference: float | None = None
    magnitude: float = 0.0
    strings: int | None = None
    reason: str = ""


def convert(source: Path, to: str, output: str, inputs: Sequence[str], environment: str) -> Converted:
    """Converts a file, or the latest version in a model directory, whose configuration counts then; its file is written
    to the current folder.

    `inputs` are texts such as "x:FP32[-1,3]", for a file that does not say what its inputs are. `environment` is a
    Python environment with the framework of the original. Raises Error; then nothing was written.
    """
    if not source.exists():
        raise Unavailable(f"'{source}' does not exist")
    traits = conversions()[to]
    make = resolve(traits.conversions[to])
    asked = Conversion(source, output, environment=environment)
    if not _is_known(source):
        return Converted(make(asked))
    with tempfile.TemporaryDirectory(prefix="halimede-convert-") as place:
        root = Path(place)
        file, original = _original(source, root / "original", inputs, environment)
        config, found = _answers(original, None)
        if not output and file != source:  # not into the model directory, which a server may watch
            asked = replace(asked, output=source.resolve().name + Path(traits.formats[0].filename).suffix)
        written = make(replace(asked, source=file, format=kind_of(file).filename, config=config))
        if isinstance(found, str):
            return Converted(written, reason=found)
        try:
            begin(written, root / "converted", "converted", _options())
            _, other = _answers(root / "converted" / "converted", found)
        except Error as error:
            return Converted(written, reason=str(error))
        if isinstance(other, str):
            return Converted(written, reason=other)
        return _compared(written, found.outputs, other.outputs)


def _is_known(source: Path) -> bool:
    try:
        kind_of(source)
    except Invalid:
        return source.is_dir() and (source / "config.pbtxt").is_file()
    return True


def _options(*in_server: str) -> ServerOptions:
    """Options for models in child processes, except those of backends that are named."""
    homes = {
        name: {HOME_SETTING: Home.CHILD.value}
        for name, traits in served().items()
        if Home.CHILD in traits.homes and name not in in_server
    }
    return ServerOptions(backend_config=homes)


def _original(source: Path, root: Path, inputs: Sequence[str], environment: str) -> tuple[Path, Path]:
    """The file to convert, and a model directory of it. Raises Error."""
    if (source / "config.pbtxt").is_file():
        folder = root / source.resolve().name
        versions = [each for each in source.iterdir() if each.name.isdecimal() and each.is_dir()]
        if not versions:
            raise Invalid(f"'{source}' has no version")
        latest = max(versions, key=lambda each: int(each.name))
        shutil.copytree(latest, folder / str(VERSION))
        shutil.copy(source / "config.pbtxt", folder)
        file = latest / read(folder).model_filename
        more = ""
    else:
        # To find the outputs of a model it is run in this process.
        options = _options(kind_of(source).backend) if inputs else _options()
        folder, file = begin(source, root, "original", options, (), inputs).folder, source
        more = "instance_group { count: 1 kind: KIND_CPU }\n"
    text = {HOME: Home.CHILD.value}
    # What runs in the server too is installed beside it. Its file may still be one for a converter in the environment.
    if environment and kind_of(file).traits.homes == (Home.CHILD,):
        text[ENVIRONMENT] = str(Path(environment).absolute())
    with (folder / "config.pbtxt").open("a") as config:
        config.write(f"\n{more}" + "".join(map(_parameter, text.items())))
    return file, folder


def _parameter(item: tuple[str, str]) -> str:
    return f'parameters {{ key: "{item[0]}" value {{ string_value: "{item[1]}" }} }}\n'


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a model got and answered."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def _answers(folder: Path, asked: _Answer | None) -> tuple[ModelConfig, _Answer | str]:
    """The configuration of a model, and its answer to the inputs of another one, or to random ones; or why there is
    none. Raises Error if the model cannot be loaded."""
    with asyncio.Runner() as runner:
        return runner.run(_asked(folder, asked))


async def _asked(folder: Path, asked: _Answer | None) -> tuple[ModelConfig, _Answer | str]:
    session = Session(folder, VERSION, _options())
    try:
        await session.start()
        config = await session.load()
        try:
            inputs = _random(config) if asked is None else _fitted(asked.inputs, config)
        except Invalid as error:
            return config, str(error)
        request = InferRequest(config.name, VERSION)
        request.inputs = {each.name: each for each in inputs}
        [answer] = await session.infer(request) or [Invalid("the model did not answer")]
        if isinstance(answer, Error):
            return config, str(answer)
        return config, _Answer(inputs, answer.outputs)
    finally:
        await session.close(_CLOSE_SECONDS)


def _random(config: ModelConfig) -> list[Tensor]:
    random = np.random.default_rng(0)
    rows = (min(_ROWS, config.max_batch_size),) if config.max_batch_size else ()
    return [_random_tensor(each, rows, random) for each in config.inputs if not each.optional]


def _random_tensor(spec: TensorSpec, rows: tuple[int, ...], random: np.random.Generator) -> Tensor:
    shape = (*rows, *(_SIZE if size < 0 else size for size in spec.dims))
    array: Array
    if spec.datatype is BYTES:
        array = np.array([f"text {number}".encode() for number in range(int(np.prod(shape)))], object).reshape(shape)
    elif spec.datatype is BOOL:
        array = random.random(shape) < 0.5
    elif spec.datatype is BF16:
        array = (random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif spec.datatype.numpy.kind == "f":
        array = random.standard_normal(shape).astype(spec.datatype.numpy)
    else:
        array = random.integers(0, _MOST, shape).astype(spec.datatype.numpy)
    return tensor_of(spec.name, spec.datatype, array)


def _fitted(given: Sequence[Tensor], config: ModelConfig) -> list[Tensor]:
    """Inputs of the original for the converted model, by their names, or in their order. Raises Invalid."""
    specs = {each.name: each for each in config.inputs}
    if len(specs) != len(given):
        raise Invalid(f"the converted model has the inputs {', '.join(specs) or 'none'}")
    same = all(each.name in specs for each in given)
    names = [each.name for each in given] if same else list(specs)
    return [Tensor(name, each.datatype, each.shape, each.memory) for name, each in zip(names, given, strict=True)]


def _compared(file: Path, original: Sequence[Tensor], converted: Sequence[Tensor]) -> Converted:
    by_name: Mapping[str, Tensor] = {each.name: each for each in converted}
    same = all(each.name in by_name for each in original)
    if len(converted) != len(original):
        return Converted(file, reason=f"the converted model has {len(converted)} outputs, the original {len(original)}")
    pairs = [(each, by_name[each.name] if same else converted[i]) for i, each in enumerate(original)]
    differences, magnitudes, strings = [], [0.0], []
    for ours, theirs in pairs:
        if ours.shape != theirs.shape or (ours.datatype is BYTES) is not (theirs.datatype is BYTES):
            said = f"{theirs.datatype} {list(theirs.shape)} instead of {ours.datatype} {list(ours.shape)}"
            return Converted(file, reason=f"the output '{ours.name}' of the converted model is {said}")
        if ours.datatype is BYTES:
            strings.append(int((array_of(ours) != array_of(theirs)).sum()))
        elif np.prod(ours.shape):
            numbers = numbers_of(ours)
            differences.append(float(np.max(np.abs(numbers - numbers_of(theirs)))))
            magnitudes.append(float(np.max(np.abs(numbers))))
    return Converted(
        file, float(np.max(differences)) if differences else None, max(magnitudes), sum(strings) if strings else None
    )
