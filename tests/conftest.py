"""What holds for all tests: where a run must be repeatable, hypothesis tries the same examples every time."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "search")
