"""Exceptions of a backend that are no Error: clients get their text, the log gets the traceback. Any thread."""

import logging
from collections.abc import Sequence

from halimede.scheduling.inference import Inference

log = logging.getLogger(__name__)


def log_exception(requests: Sequence[Inference], error: BaseException) -> None:
    """Logs an exception that a batch ended with."""
    name = requests[0].request.model_name if requests else ""
    # Without the text of the exception, which may differ from batch to batch: the log merges equal lines.
    log.error(
        "model '%s': its backend raised an exception; the requests of the batch fail, and the model goes on",
        name,
        exc_info=error,
        extra={"model": name},
    )
