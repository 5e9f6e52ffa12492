"""What runs inside a worker process: loads a user's `model.py` and serves batches that arrive on a socket.

Needs the standard library and numpy only, in Python 3.9 syntax, because it may run under another interpreter than the
server. `main.py` imports this folder as the package `halimede_worker`, so nothing here names the server's package. The
server imports `frames`, the one module that both sides share.
"""
