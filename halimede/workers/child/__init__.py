"""The program of a process that runs a Python model: it loads a user's `model.py` and serves batches from a socket.

Needs the standard library and numpy only, in Python 3.9 syntax, because it may run under another interpreter than the
server. `main.py` imports this folder as the package `halimede_worker`, so nothing here names the server's package.
`workers.host` starts it, `backends.python` and `backends.child` are its other side. The protocol (`frames`, `segments`,
`channel`) is also that of `hosted`, the program for all other backends, and of the server.
"""
