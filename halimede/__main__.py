"""`python -m halimede`: the same as the `halimede` command."""

import sys

from halimede.cli.main import main

sys.exit(main())
