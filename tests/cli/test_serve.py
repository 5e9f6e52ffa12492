"""The end of the process of `halimede serve`."""

import subprocess
import sys


def test_process_ends_with_a_closed_output() -> None:
    code = (
        "import os, sys; from halimede.cli.serve import _end; read, write = os.pipe(); os.close(read)\n"
        "sys.stdout = os.fdopen(write, 'w'); print('x'); _end(5)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 5
