"""`python -m hisparse_toolkit` is the `hisparse` command."""

import sys

from hisparse_toolkit.cli import main

sys.exit(main())
