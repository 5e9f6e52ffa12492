"""The module of Triton's compiled classes in a process that a model has spawned: it is the other one here."""

__import__("triton_python_backend_utils")  # which takes this name in `sys.modules` as well
