"""`python -m attack`."""

import sys

from .run import main

sys.exit(main())
