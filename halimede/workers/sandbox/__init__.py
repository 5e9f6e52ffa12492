"""The program that confines a process and then becomes it: the sandbox of Python workers and hosted backends.

It runs under the server's own interpreter, isolated (`-I -S`), before any code of a model. It imports the standard
library and this package alone. `workers.host.sandbox` decides what to confine; this package carries it out. Why these
means: docs/decisions/sandbox.md.
"""
