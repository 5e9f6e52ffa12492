"""The child home, the child's side: the program of a process that runs any backend.

It takes the orders of `backends.child` and runs the same backend module as the server would: `batch` implements the
protocols `Batch` and `Responses` over frames. It imports the server's package, so both sides have one version. Frames
and the connection come from `workers.child`, which is also the program for Python models. `workers.host` starts both.
"""
