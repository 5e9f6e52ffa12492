"""What a Python model needs to run on a thread of the server: private names for its modules, a
`triton_python_backend_utils` of its own, and a connection to the server without a socket
(docs/decisions/in-process-python.md). Everything else is the code of workers, from `workers.child`.
"""
