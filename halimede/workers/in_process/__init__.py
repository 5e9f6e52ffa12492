"""What lets a Python model run on a thread of the server: its own modules under a private name, its
`triton_python_backend_utils`, and its end of the connection to the server (`docs/decisions/in-process-python.md`).
Everything else is what runs in a worker process too, from `workers.child`.
"""
