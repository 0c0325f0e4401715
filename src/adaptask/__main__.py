"""`python -m adaptask` is the command `adaptask`."""

import sys

from adaptask.cli import main

sys.exit(main())
