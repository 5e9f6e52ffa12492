"""Tests of forests need treelite and the libraries that train them: `make test-trees` installs them. Without them they
are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("treelite", "xgboost", "lightgbm"))) else ["test_*.py"]
