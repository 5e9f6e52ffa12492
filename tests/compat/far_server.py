"""`python -m tests.compat.far_server FLAGS`: the server with its front ends at a port that serializes every message.

This shows what several front-end processes would do: only bytes cross the port, and they arrive one turn of the event
loop later.
"""

import os
import sys

from halimede.cli.serve import serve
from halimede.options import parse
from tests.fakes import SerializingPort

if __name__ == "__main__":
    sys.exit(serve(parse(sys.argv[1:], os.environ), SerializingPort))
