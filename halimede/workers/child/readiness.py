"""Asks the model whether it is ready when the server asks (P9).

Questions have a socket and a thread of their own, which exist only for a model with `is_ready`: the main thread may be
in `execute` for long, and does not read then. So `is_ready` runs at the same time as `execute`; a model that does not
allow that needs a lock. Code that holds the interpreter lock delays the answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

QUESTION, READY, NOT_READY = b"?", b"1", b"0"


def answer_questions(is_ready: Callable[[], bool]) -> socket.socket:
    """Starts the thread. The result is the server's end of the socket."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(None)  # a model may have set a default for the sockets that it opens
    threading.Thread(target=_answer, args=(ours, is_ready), name="readiness", daemon=True).start()
    return theirs


def _answer(sock: socket.socket, is_ready: Callable[[], bool]) -> None:
    with sock:
        while sock.recv(1):
            sock.sendall(READY if is_ready() else NOT_READY)
