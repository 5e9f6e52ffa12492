"""Models of runtimes that `make test` does not install. `make test-openvino` and `make test-tensorflow` do, and run the
modules `with_*.py`; their names keep them out of other runs."""
