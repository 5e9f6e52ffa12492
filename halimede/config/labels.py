"""Label files of outputs (contract R27, R47). Reads files; any thread."""

from pathlib import Path

from halimede.config.files import read_whole
from halimede.config.model_config import TensorSpec
from halimede.errors import Internal, Unsupported


def read_labels(folder: Path, spec: TensorSpec, model: str) -> tuple[str, ...]:
    """The labels of an output, one a line; none where it names no file. `folder` is the model's directory. Bytes that
    are not UTF-8 are kept as surrogate escapes.

    Raises Unsupported for a file outside `folder`, Internal for one that cannot be read.
    """
    if not spec.label_filename:
        return ()
    # Joined as text, as the real server does: an absolute name stays below the model.
    path = Path(f"{folder}/{spec.label_filename}")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Unsupported(
            f"label file path '{path}' for output '{spec.name}' in model '{model}' is outside model directory"
        )
    try:
        text = read_whole(path).decode(errors="surrogateescape")
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
