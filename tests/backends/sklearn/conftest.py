"""These tests need what `make test-trees` installs. Without it they are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("skops", "treelite", "xgboost", "lightgbm", "yaml"))) else ["test_*.py"]
