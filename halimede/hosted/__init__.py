"""The program of a child process that runs an instance of a backend (the child home).

It is the same backend module as in the server: `batch` implements the protocols `Batch` and `Responses` on the child's
side of the socket. `backends.child` is the server's side.
"""
