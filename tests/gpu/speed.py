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
        command = [sys.executable, "-m", bench, "--only", part, "--rounds", "1"]
        ended = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
        print(ended.stdout, file=sys.stderr)
        rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            beside = f"{row['unit']}; {row['limit']['name']}: {row['limit']['value']}" if row["limit"] else row["unit"]
            step.say(row["case"], row["median"], beside)
        assert ended.returncode == 0, f"exit status {ended.returncode}"
        assert rows, "no rows"
        return f"{len(rows)} rows"

    check.__name__ = "check_" + bench.rpartition(".")[2]
    return check


CHECKS = [rows_of("benches.bench_send", "gpu_send"), rows_of("benches.bench_weights", "one_gpu")]

if __name__ == "__main__":
    main("f", CHECKS)
