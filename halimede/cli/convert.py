"""`halimede convert`: makes a file that the server can open of one that it must not open. Main thread."""

import shlex
from pathlib import Path

from halimede.backends.registry import conversions, resolve
from halimede.cli.arguments import Convert
from halimede.cli.terminal import say_error
from halimede.errors import Error


def run(order: Convert) -> int:
    """Prints the file that was written and the next command, and returns 0; 1 if none was."""
    traits = conversions()[order.to]
    try:
        written: Path = resolve(traits.conversions[order.to])(Path(order.source), order.output)
    except ImportError as error:
        say_error(f"{error}: pip install '{traits.distribution}[{traits.extra}]', and what wrote '{order.source}'")
        return 1
    except Error as error:
        say_error(str(error))
        return 1
    print(written)
    print(f"\nserve it:    halimede init {shlex.quote(str(written))} REPO")
    return 0
