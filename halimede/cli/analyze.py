"""`halimede analyze`: reads its command line, which is that of Model Analyzer, and runs it. Main thread."""

from collections.abc import Sequence

from halimede import __version__
from halimede.analyze.command import FAILED, run
from halimede.analyze.command_line import HelpRequested, VersionRequested, parse
from halimede.cli.terminal import help_width, say_error
from halimede.errors import Error


def analyze(words: Sequence[str]) -> int:
    """Runs the words after `halimede analyze`. Returns the exit status."""
    try:
        order = parse(words, help_width())
    except HelpRequested as asked:
        print(asked, end="")
        return 0
    except VersionRequested:
        print(f"halimede analyze {__version__}")
        return 0
    except Error as error:
        say_error(f"{error}\nhalimede analyze --help lists the commands and options.")
        return FAILED
    try:
        return run(order)
    except Error as error:
        say_error(" ".join(str(error).split()))
        return FAILED
