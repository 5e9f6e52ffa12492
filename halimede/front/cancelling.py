"""Passes on cancellations that arrive from clients, and notes them in the verbose log. Event-loop thread only."""

import logging
from typing import Final

from halimede.engine_port import EnginePort

log = logging.getLogger(__name__)

VERBOSE: Final = logging.INFO - 1
"""The level of lines that `--log-verbose=1` shows."""


def cancel(port: EnginePort, key: int, protocol: str, model: str, request_id: str) -> None:
    """Cancels an inference because its client asked for that or has gone."""
    log.log(
        VERBOSE,
        "%s: a request for model '%s' was cancelled by its client, request id '%s'",
        *(protocol, model, request_id or "<id_unknown>"),
        extra={"model": model, "request_id": request_id},
    )
    port.cancel(key)
