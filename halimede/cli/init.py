"""`halimede init`: a model in a repository, made of a file. Runs on the main thread."""

import logging
import os
import sys
from pathlib import Path

from halimede.cli.arguments import Init
from halimede.devtools.scaffold import begin
from halimede.errors import Error
from halimede.platform.gpus import visible_gpus


def run(order: Init) -> int:
    """0 where the model was made; its files and the next command are printed then."""
    logging.getLogger("halimede").setLevel(logging.CRITICAL)
    try:
        begun = begin(Path(order.source), Path(order.repository), order.name, order.server, visible_gpus(os.environ))
    except Error as error:
        print(f"error: {str(error).rstrip()}", file=sys.stderr)
        return 1
    for file in begun.files:
        print(file)
    for note in begun.notes:
        print(f"warning: {note}", file=sys.stderr)
    print(f"\nserve it:    {begun.next}")
    if begun.run:
        print(f"or ask it:   {begun.run}")
    return 0
