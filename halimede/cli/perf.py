"""`halimede perf`: reads its command line, which is that of perf_analyzer, and runs it. Main thread."""

from collections.abc import Sequence

from halimede import __version__
from halimede.cli.terminal import help_width, say
from halimede.perf.command import run
from halimede.perf.command_line import help_text, parse
from halimede.perf.options import GENERIC_ERROR, HelpRequested, UsageError, VersionRequested


def perf(words: Sequence[str]) -> int:
    """Runs the words after `halimede perf`. Returns the exit status (X26)."""
    try:
        options, warnings = parse(words)
    except HelpRequested:
        print(help_text(help_width()), end="")
        return 0
    except VersionRequested:
        say(f"Perf Analyzer Version {__version__} (halimede perf)")
        return 0
    except UsageError as error:
        say(f"Error: {error}\nhalimede perf --help lists the options.")
        return GENERIC_ERROR
    for warning in warnings:
        say(warning)
    return run(options)
