"""Makes a checkpoint of treelite of a forest that scikit-learn trained, for `halimede convert`.

It runs in the process of a user who trusts the file: to read a pickle is to run code. The server never imports it.
"""

import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import treelite

from halimede.backends.conversion import Conversion, free
from halimede.backends.fil.settings import FILES
from halimede.errors import Internal, Invalid


def to_checkpoint(asked: Conversion) -> Path:
    """Writes a checkpoint, and returns its path.

    Raises ImportError if a library is missing, Error if the file has no forest that treelite knows, or cannot be
    written."""
    source = asked.source
    target = free(Path(asked.output) if asked.output else source.with_name(FILES["treelite_checkpoint"]))
    estimator = _estimator(source)
    try:
        model = treelite.sklearn.import_model(estimator)
        model.serialize(target)
    except OSError as error:
        raise Internal(f"'{target}': {error.strerror}") from error
    # What it says depends on the estimator: an unknown class, a forest that was not fitted, ...
    except Exception as error:
        raise Invalid(f"'{source}' has a {type(estimator).__name__}, which treelite cannot convert: {error}") from error
    return target


def _estimator(source: Path) -> Any:
    """What is in the file. The format of joblib is a pickle with arrays in it; its reader reads plain ones too."""
    try:
        return import_module("joblib").load(source)
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, KeyError, OSError) as error:
        raise Invalid(f"'{source}' cannot be read as a pickle: {error}") from error
