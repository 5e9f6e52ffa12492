"""Asks the model whether it is ready, whenever the server does (P9).

Questions come by a socket of their own and are answered on a thread of their own, which exists only for a model that
has `is_ready`: the main thread may be in `execute` for long, and does not read then. So `is_ready` runs beside
`execute`; a model that cannot have that needs a lock. What holds the interpreter's lock holds the answer up too.
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
