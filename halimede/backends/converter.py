"""The process of a conversion: takes an order from standard input, calls a function of a file, and answers in JSON.

Imports nothing of this package: a framework may have a Python environment of its own. The order names the file, its
function and the modules that the function needs. The function gets the whole order. The answer is `{}`,
`{"missing": module, "error": text}` or `{"error": text}`.
"""

import json
import os
import runpy
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a framework prints is not the answer
        json.dump(_obey(order), answers)
        answers.flush()
        os._exit(0)  # the threads of a framework may not end


def _obey(order: dict[str, Any]) -> dict[str, str]:
    for module in order["needs"]:
        try:
            import_module(module)
        except ImportError as error:
            return {"missing": module, "error": str(error)}
    try:
        runpy.run_path(order["program"])[order["function"]](order)
    except Exception as error:  # a framework raises whatever it likes
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


if __name__ == "__main__":
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:  # noqa: PTH100, PTH120
        del sys.path[0]  # modules of this package are not to hide those of a framework
    main()
