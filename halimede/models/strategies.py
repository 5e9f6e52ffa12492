"""Finds and makes the batch strategy of a model: a class of its owner that says which requests go together (contract
S40). On a load thread; its code runs in the server's own process, on the event loop afterwards.

`batch_strategy.py` in the version's directory or in the model's, or the file that the parameter
TRITON_BATCH_STRATEGY_PATH names, which must lie in the model's directory, defines a class `BatchStrategy`. It is made
once a version, with the model's configuration as JSON values.
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
    """None for a model that has none, or no dynamic batcher to use it. Raises NotFound, Invalid."""
    if config.sequence_batching is not None and PARAMETER in config.parameters:
        raise Invalid(f"{PARAMETER} cannot be specified with sequence batcher, using default batching strategy")
    file = strategy_file(config, folder)
    if file is None or config.dynamic_batching is None:
        return None
    return _made(file, config)


def strategy_file(config: ModelConfig, folder: ModelFolder) -> Path | None:
    """None for a model that has none. Raises NotFound, Invalid for one that is not where the configuration says."""
    named = config.parameters.get(PARAMETER)
    if named is None:
        places = (folder.version, folder.model)
        return next((place / FILENAME for place in places if is_file(f"{place}/{FILENAME}")), None)
    file = (folder.model / named).resolve()
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
    except BaseException as error:  # code of the model's owner: SystemExit too
        raise Invalid(f"{file}: {type(error).__name__}: {error}") from error
    return made


def _imported(file: Path) -> ModuleType:
    """As it is now: Python's own import would take the bytecode of an earlier file of the same second and size, and
    leave some in the repository. Raises whatever the code does."""
    module = ModuleType(str(file))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # where a dataclass looks for its module
    try:
        exec(compile(read_whole(file), file, "exec"), vars(module))
    finally:
        sys.modules.pop(module.__name__, None)
    return module
