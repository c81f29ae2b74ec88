"""Step f: the benches' rows of a GPU, beside CUDA's own copies in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from tests.gpu.run import CHECKOUT
from tests.gpu.step import Step, main


def rows_of(bench: str, part: str) -> Callable[[Step], str]:
    def check(step: Step) -> str:
        command = [sys.executable, "-m", f"benches.{bench}", "--only", part, "--rounds", "3"]
        ended = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
        print(ended.stdout, file=sys.stderr)
        rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            step.say(str(row.get("case", row.get("name"))), json.dumps(row))
        assert ended.returncode == 0 and rows, f"exit status {ended.returncode}, {len(rows)} rows"
        return f"{len(rows)} rows"

    check.__name__ = f"check_{bench}"
    return check


CHECKS = [rows_of("bench_send", "gpu_send"), rows_of("bench_weights", "one_gpu")]

if __name__ == "__main__":
    main("f", CHECKS)
