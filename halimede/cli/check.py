"""`halimede check`: prints every problem of model repositories on standard output. Main thread.

What models print and log while they load goes to standard error.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import sys
from typing import TextIO

from halimede.checking.check import Checked, check, load
from halimede.checking.migration import migration_text
from halimede.checking.report import WIDTH, document, passes, text_of
from halimede.cli.arguments import Check
from halimede.cli.model_run import own_output
from halimede.cli.terminal import has_colours, painted, say_error
from halimede.errors import Error
from halimede.platform.gpus import visible_gpus
from halimede.platform.limits import allow_many_files
from halimede.platform.loops import new_event_loop

MAX_WIDTH = 120
"""Characters of a line. Longer ones are hard to read."""
_SEVERITY = re.compile(r"^(\S.*?: |    )(error|warning|note)(?=: )", re.MULTILINE)


def run(order: Check) -> int:
    """Returns 0 if the repositories pass, 1 if they do not or the check did not end."""
    out = own_output()
    logging.getLogger("halimede").setLevel(logging.CRITICAL if not order.server.log.verbose else logging.DEBUG)
    finished = True
    checked = check(order.repositories, order.server, visible_gpus(os.environ))
    if order.load:
        allow_many_files()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                finished = runner.run(_load(checked, order))
            except asyncio.CancelledError:
                say_error("interrupted")
                finished = False
    try:
        print(_told(order, checked, out), file=out, flush=True)
    except OSError as error:  # a full disk, or a closed pipe
        say_error(f"the output cannot be written: {error.strerror}")
        os._exit(1)
    if not finished:
        # At its normal end the interpreter waits for threads, and one of a model or a runtime may never end.
        sys.stderr.flush()
        os._exit(1)
    return 0 if passes(checked, order.strict) else 1


def _told(order: Check, checked: Checked, out: TextIO) -> str:
    if order.json:
        return json.dumps(document(checked, order.strict, order.flags), indent=1)
    shown = out.isatty()
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH) if shown else WIDTH
    if order.migrate:
        return migration_text(checked, order.flags, width)
    # A program that reads the output wants each problem on one line.
    return _coloured(text_of(checked, width, wrapped=shown), has_colours(out))


def _coloured(text: str, colours: bool) -> str:
    """The report, with the severity of each problem (`file:line: severity: text`) in its colour."""
    return _SEVERITY.sub(lambda found: found[1] + painted(found[2], found[2], colours), text)


async def _load(checked: Checked, order: Check) -> bool:
    """Loads the models. Returns whether all loads and unloads ended."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await load(checked, order.server)
    except Error as error:
        say_error(str(error))
        return False
    return True
