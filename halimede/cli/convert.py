"""`halimede convert`: makes a model file of one in another format, or of a pickle. Main thread."""

import logging
import shlex
import sys
from pathlib import Path

from halimede.backends.registry import conversions
from halimede.cli.arguments import Convert
from halimede.cli.model_run import own_output
from halimede.cli.terminal import say_error
from halimede.devtools.conversion import Converted, convert
from halimede.errors import Error


def run(order: Convert) -> int:
    """Prints the file that was written, how its answers differ and the next command, and returns 0; 1 if there is no
    file, or if it could not be compared with the original."""
    out = own_output()  # frameworks print as they like
    logging.getLogger("halimede").setLevel(logging.CRITICAL)  # what goes wrong is in the error
    traits = conversions()[order.to]
    try:
        made = convert(Path(order.source), order.to, order.output, order.inputs, order.environment)
    except ImportError as error:
        say_error(f"{error}: pip install '{traits.distribution}[{traits.extra}]', and what wrote '{order.source}'")
        return 1
    except Error as error:
        say_error(str(error).rstrip())
        return 1
    print(made.file, file=out)
    for line in _differences(made):
        print(line, file=out)
    print(f"\nserve it:    halimede init {shlex.quote(str(made.file))} REPO", file=out, flush=True)
    if made.reason:
        sys.stdout.flush()
        say_error(f"the outputs were not compared: {made.reason}")
    return 1 if made.reason else 0


def _differences(made: Converted) -> list[str]:
    """On random inputs."""
    lines = []
    if made.difference is not None:
        lines.append(
            f"largest difference of the outputs on random inputs: {made.difference:.2g} "
            f"(their largest number is {made.magnitude:.2g})"
        )
    if made.strings is not None:
        lines.append(f"different strings: {made.strings}" if made.strings else "all strings are equal")
    return lines
