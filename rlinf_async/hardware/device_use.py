"""Reports the memory and load of GPUs; runs as a subprocess, because a driver's library may take seconds to answer.

``python -m rlinf_async.hardware.device_use 0 GPU-5a3e`` prints a JSON object. It maps each device id to ``used`` and
``memory`` in bytes, and ``percent``, the share of the last second in which the device was busy.
"""

from __future__ import annotations

import json
import sys

from rlinf_async.hardware.nvidia import read_use


def main() -> None:
    print(json.dumps(read_use(sys.argv[1:])))  # noqa: T201 (the answer)


if __name__ == "__main__":
    main()
