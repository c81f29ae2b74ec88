"""Runs with a durable experience that are killed whole in the middle of puts and takes, and what the next one finds.

``python -m tests.experience.killed_runs 50`` kills fifty; the suite kills three.  ``... run FILE JOURNAL`` is one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rlinf_async import Cluster, Experience

MARK: Final = "RLINF_TEST_KILLED_RUN"
GROUP: Final = 3
LARGE_BYTES: Final = 100_000
"""Samples of this size travel and are kept as sealed memory."""


def create(file: str) -> Experience:
    return Experience.create("killed", group=GROUP, durable=file, max_staleness=10**9)


def said(journal: int, word: str, numbers: list[int]) -> None:
    os.write(journal, f"{word} {' '.join(map(str, numbers))}\n".encode())


async def produce(experience: Experience, journal: int, first: int) -> None:
    for number in range(first, first + 10**6):
        body = b"x" * (LARGE_BYTES if number % 50 == 0 else 10)
        await experience.put((number, body), version=number, group=number // GROUP)
        said(journal, "put", [number])


async def consume(experience: Experience, journal: int) -> None:
    while True:
        async with experience.take(2) as batch:
            numbers = [number for number, _ in batch.items]
            said(journal, "had", numbers)
            await asyncio.sleep(0)
            if numbers[0] % 4 == 0:
                await batch.done()
                said(journal, "took", numbers[:GROUP])
                numbers = numbers[GROUP:]
        said(journal, "took", numbers)


async def run(file: str, journal_file: str, life: int) -> None:
    journal = os.open(journal_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await create(file)
        assert cluster
        said(journal, "begun", [life])
        producers = [produce(experience, journal, (10 * life + each) * 10**7) for each in range(6)]
        await asyncio.gather(*producers, consume(experience, journal), consume(experience, journal))


def kill_all(mark: str) -> None:
    """Kill every process that has this mark in its environment, until none is left."""
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


@dataclass
class Journal:
    """All that the runs have written down.

    Attributes:
        put: samples whose puts had returned.
        had: samples that were in some batch.
        took: samples of batches whose ends had returned.
    """

    put: set[int] = field(default_factory=set)
    had: set[int] = field(default_factory=set)
    took: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    """Samples that were in a batch after they had been taken."""
    lives: int = 0

    @classmethod
    def read(cls, file: Path) -> Journal:
        journal = cls()
        for line in file.read_text().splitlines():
            word, *rest = line.split()
            numbers = set(map(int, rest))
            if word == "begun":
                journal.lives += 1
            elif word == "put":
                journal.put |= numbers
            elif word == "had":
                journal.again |= numbers & journal.took
                journal.had |= numbers
            else:
                journal.took |= numbers
        return journal


def kill_runs(trials: int, folder: Path, seed: int) -> Journal:
    """Let runs begin with what the one before has left, and kill each; return what they have written down."""
    choose = random.Random(seed)
    (folder / "journal").touch()
    for life in range(1, trials + 1):
        with tempfile.TemporaryDirectory(prefix="k") as place:  # of its sockets, which nobody removes
            _kill_one(folder, life, place, choose.uniform(0.0, 0.6))
    return Journal.read(folder / "journal")


def _kill_one(folder: Path, life: int, place: str, after_s: float) -> None:
    mark, journal_file = uuid.uuid4().hex, folder / "journal"
    files = [str(folder / "experience.db"), str(journal_file)]
    command = [sys.executable, "-m", "tests.experience.killed_runs", "run", *files, str(life)]
    environment = {**os.environ, MARK: mark, "XDG_RUNTIME_DIR": place}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while Journal.read(journal_file).lives < life:
            assert process.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < deadline, "the run did not begin"
            time.sleep(0.02)
        time.sleep(after_s)
    finally:
        kill_all(mark)
        process.wait()


async def check(file: Path, journal: Journal) -> str:
    """Take what is left, and hold it against what was written down."""
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await create(str(file))
        assert cluster
        found = (await experience.state_dict())["samples"]
        complete = [name for name, count in Counter(name for _, name, *_ in found).items() if count == GROUP]
        left: list[int] = []
        if complete:
            async with asyncio.timeout(30), experience.take(len(complete)) as batch:
                left = [number for number, _ in batch.items]
        here = [*left, *(number for *_, (number, _) in (await experience.state_dict())["samples"])]
        after = await experience.stats()
    assert len(set(here)) == len(here), "a sample is there twice"
    assert not journal.again, f"taken, and then had again: {sorted(journal.again)[:10]}"
    assert not set(here) & journal.took, "taken, and still there"
    lost = journal.put - set(here) - journal.had
    assert not lost, f"accepted, and lost: {sorted(lost)[:10]}"
    gone = journal.had - journal.took - set(here)
    # The end of a batch may be written and its holder killed before it had heard so: two groups for each consumer.
    assert len(gone) <= journal.lives * 2 * 2 * GROUP, sorted(gone)
    assert after.put == after.taken + after.present + after.leased + sum(after.dropped.values())
    assert after.put >= len(journal.put)
    return (
        f"{journal.lives} runs killed: {len(journal.put)} puts done, {len(journal.took)} taken, {len(here)} left, "
        f"{len(gone)} whose end was written and not heard of"
    )


def main(arguments: list[str]) -> None:
    if arguments[0] == "run":
        file, journal_file, life = arguments[1:]
        asyncio.run(run(file, journal_file, int(life)))
        return
    with tempfile.TemporaryDirectory() as folder:
        seed = random.randrange(10**6)
        print(f"seed {seed}", flush=True)
        journal = kill_runs(int(arguments[0]), Path(folder), seed)
        print(asyncio.run(check(Path(folder) / "experience.db", journal)))


if __name__ == "__main__":
    main(sys.argv[1:])
