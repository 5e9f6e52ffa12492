"""The child home: instances of any backend in processes of their own (docs/decisions/child-home.md).

This package is the server's side. It starts and supervises the processes and passes batches on. `halimede.hosted` is
the program that runs in them.
"""
