"""Entry point of ``python -m rlinf_launcher``, which is the same program as ``rlinf-launch``."""

import sys

if __package__ != "rlinf_launcher":
    sys.exit("this checkout is not installed, and its launcher has another name then: pip install -e .")

from .cli.main import main

sys.exit(main())
