"""Finds and creates the batch strategy of a model, a class of its owner that decides which requests share a batch
(S40).

The class `BatchStrategy` is in `batch_strategy.py` in the directory of the version or of the model, or in the file of
the model's directory that the parameter TRITON_BATCH_STRATEGY_PATH names. One object is created for each version, with
the model's configuration as JSON values. This module runs on a load thread; the strategy then runs on the event loop.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

from halimede.backends.api import ModelFolder
from halimede.config import ModelConfig
from halimede.config.files import is_file, read_whole
from halimede.errors import Invalid, NotFound
from halimede.scheduling.strategy import BatchStrategy

PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
FILENAME = "batch_strategy.py"
_CLASS = "BatchStrategy"
_METHODS = ("start", "include", "finish")


def strategy_of(config: ModelConfig, folder: ModelFolder) -> BatchStrategy | None:
    """The strategy, or None if the model has none or no dynamic batcher. Raises NotFound, Invalid."""
    if config.sequence_batching is not None and PARAMETER in config.parameters:
        raise Invalid(f"{PARAMETER} cannot be specified with sequence batcher, using default batching strategy")
    file = strategy_file(config, folder)
    if file is None or config.dynamic_batching is None:
        return None
    return _made(file, config)


def strategy_file(config: ModelConfig, folder: ModelFolder) -> Path | None:
    """The file of the strategy, or None if the model has none. Raises NotFound or Invalid if the parameter is wrong."""
    named = config.parameters.get(PARAMETER)
    if named is None:
        places = (folder.version, folder.model)
        return next((place / FILENAME for place in places if is_file(f"{place}/{FILENAME}")), None)
    file = (folder.model / named).resolve()
    # A link within the folder may lead out of it, too.
    if not file.is_relative_to(folder.model.resolve()):
        raise Invalid("Batching library path escapes model repository.")
    if not file.is_file():
        raise NotFound(f"Batching library path not found: {named}")
    return file


def _made(file: Path, config: ModelConfig) -> BatchStrategy:
    try:
        strategy = getattr(_imported(file), _CLASS, None)
        if strategy is None or not all(callable(getattr(strategy, method, None)) for method in _METHODS):
            raise Invalid(f"{file} does not define all required custom batching functions for model {config.name}")
        made: BatchStrategy = strategy(json.loads(config.json))
    except Invalid:
        raise
    except BaseException as error:  # the code of the model's owner may raise SystemExit, too
        raise Invalid(f"{file}: {type(error).__name__}: {error}") from error
    return made


def _imported(file: Path) -> ModuleType:
    """Runs the file as a module. Raises whatever its code does.

    Python's own import would take the bytecode of an earlier file with the same second and size, and would write
    bytecode to the repository.
    """
    module = ModuleType(str(file))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # a dataclass looks for its module there
    try:
        exec(compile(read_whole(file), file, "exec"), vars(module))
    finally:
        sys.modules.pop(module.__name__, None)
    return module
