"""Classes for models of the Python backend that have no `TritonPythonModel` themselves, one for each platform.

They run in a worker, under the interpreter of the model's environment. So they import what any Python model may import,
and nothing of this package.
"""
