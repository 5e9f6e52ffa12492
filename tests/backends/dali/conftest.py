"""Tests that run pipelines need DALI, which `make test-dali` installs. Without it only those of configurations are
collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("nvidia") and find_spec("nvidia.dali") else ["test_pipeline.py"]
