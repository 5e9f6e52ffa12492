"""`halimede init`: makes a model in a repository out of a file. Main thread."""

import logging
import os
from pathlib import Path

from halimede.cli.arguments import Init
from halimede.cli.terminal import say_error, say_warning
from halimede.devtools.scaffold import begin
from halimede.errors import Error
from halimede.platform.gpus import visible_gpus


def run(order: Init) -> int:
    """Prints the files of the model and the next commands, and returns 0; 1 if no model was made."""
    # What goes wrong is in the error or in the notes, and the log would say it again.
    logging.getLogger("halimede").setLevel(logging.CRITICAL)
    try:
        gpus = visible_gpus(os.environ)
        begun = begin(Path(order.source), Path(order.repository), order.name, order.server, gpus, order.inputs)
    except Error as error:
        say_error(str(error).rstrip())
        return 1
    for file in begun.files:
        print(file)
    # Standard output has what a script may read; warnings are for people.
    for note in begun.notes:
        say_warning(note)
    print(f"\nserve it:    {begun.next}")
    if begun.run:
        print(f"or ask it:   {begun.run}")
    return 0
