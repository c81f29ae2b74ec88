"""``make gpu``: proves on a machine with a GPU all that this project says of GPUs, step by step, within minutes.

Each step is a program of its own with a deadline; a step that fails or hangs leaves the next ones alone.  The folder
``gpu-report`` gets the facts as JSON lines, as a Markdown table, and one log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.gpu.report import FAILED, SKIPPED, Fact, append, read_facts, state_of, table
from tests.gpu.step import FACTS_VARIABLE

CHECKOUT: Final = Path(__file__).resolve().parents[2]
NO_GPU: Final = 3
"""Exit status on a machine without a GPU."""


@dataclass(frozen=True)
class Part:
    """A step as the runner knows it.

    Attributes:
        letter, title: as they are printed.
        module: program of the step.
        deadline_s: seconds after which it is killed.
        needs_gpu: False if it has something to say on every machine.
    """

    letter: str
    title: str
    module: str
    deadline_s: float
    needs_gpu: bool = True


PARTS: Final = (
    Part("a", "the kernel and CUDA", "tests.gpu.machine", 40, needs_gpu=False),
    Part("b", "the inventory and pinning", "tests.gpu.pinning", 40),
    Part("c", "the tests marked gpu and the documented examples", "tests.gpu.marked", 110),
    Part("d", "the examples' configurations", "tests.gpu.examples", 150),
    Part("e", "weights of a large model", "tests.gpu.large_model", 150),
    Part("f", "the benches", "tests.gpu.speed", 75),
    Part("g", "deaths of processes with memory on the GPU", "tests.gpu.deaths", 45),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--only", help="letters of the steps to run, for example a,c", default="")
    parser.add_argument("--report", type=Path, default=CHECKOUT / "gpu-report", help="folder of the report")
    options = parser.parse_args(arguments)
    only = set(options.only.replace(",", ""))
    if unknown := only - {part.letter for part in PARTS}:
        parser.error(f"--only names step {min(unknown)!r}; the steps are {''.join(part.letter for part in PARTS)}")
    folder: Path = options.report
    folder.mkdir(parents=True, exist_ok=True)
    facts, log = folder / "facts.jsonl", folder / "log.txt"
    for path in (facts, log):
        path.write_text("")
    has_gpu = count_gpus() > 0
    for part in PARTS:
        if only and part.letter not in only:
            continue
        if has_gpu or not part.needs_gpu:
            run_part(part, facts, log, note="" if has_gpu else "; no GPU")
        else:
            append(facts, Fact(part.letter, part.title, SKIPPED, "no GPU"))
            print(f"{part.letter}  {part.title}: no GPU", flush=True)
    found = facts_of(facts)
    (folder / "table.md").write_text(table(found))
    if not has_gpu:
        return NO_GPU
    return 1 if state_of(found) == FAILED else 0


def count_gpus() -> int:
    """Return the number of GPUs that torch can use, found in a process of its own."""
    code = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    if found.returncode:
        sys.exit(f"torch cannot be used: {found.stderr[-500:]}")
    return int(found.stdout.strip() or 0)


def facts_of(path: Path) -> list[Fact]:
    with path.open() as lines:
        return read_facts(lines)


def run_part(part: Part, facts: Path, log: Path, note: str = "") -> None:
    """Run one step and print its line; write down a death or a deadline as a fact of the step."""
    before, began = len(facts_of(facts)), time.monotonic()
    with log.open("ab") as output:
        output.write(f"\n==== {part.letter}  {part.title}\n".encode())
        output.flush()
        step = subprocess.Popen(
            [sys.executable, "-m", part.module, str(part.deadline_s)],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=CHECKOUT, start_new_session=True,
            env={**os.environ, FACTS_VARIABLE: str(facts.resolve()), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = step.wait(part.deadline_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGKILL)  # and what a step that has died has left
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(10)
    said = facts_of(facts)[before:]
    if status is None:
        append(facts, Fact(part.letter, part.title, FAILED, f"not done after {part.deadline_s:g} s"))
    elif status not in (0, 1) or (status == 1 and state_of(said) != FAILED):
        append(facts, Fact(part.letter, part.title, FAILED, f"the step exited with status {status}"))
    found = facts_of(facts)[before:]
    if not found:
        found = [Fact(part.letter, part.title, FAILED, "the step has said nothing")]
        append(facts, found[0])
    bad = [f"{fact.name}: {''.join(str(fact.value).splitlines()[-1:])[:200]}" for fact in found if fact.state == FAILED]
    took = f"{len(found)} facts in {time.monotonic() - began:.0f} s"
    print(f"{part.letter}  {part.title}: {state_of(found)}, {took}{note}")
    for line in bad:
        print(f"   FAILED {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
