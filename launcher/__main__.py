"""``python -m launcher`` is ``rlinf-launch``."""

import sys

from .cli import main

sys.exit(main())
