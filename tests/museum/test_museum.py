"""A museum of hangs: programs that stand still, and what ``rlinf-ctl stuck`` says of each five seconds later.

Each exhibit lies beside this file, prints ``still`` when its progress has ended, and marks the lines that take part by
comments.  Of those the table says who has to be named there, and with which words; then who should have acted.

Each exhibit is visited twice: the run imports the framework by its path, and by a link to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests._support.inspected_runs import InspectedRun

pytestmark = pytest.mark.shared_cluster

MUSEUM = Path(__file__).parent
AT_ONCE = 3
PAUSE_S = 5.0
START_TIMEOUT_S = 180
"""For several that start side by side on a machine that has other work too."""

MARKS = {
    ("calls_in_a_circle", True): (),
    ("no_more_producers", False): pytest.mark.slow,
    ("straggler", True): pytest.mark.slow,
}
"""By exhibit, and whether by a link: when it is asked; the others are ``make museum``."""


def rank(group: str, ranks: str) -> str:
    """Pattern of one rank, or of several as they are folded."""
    ranks = re.escape(ranks)
    return rf"(\b{group}:{ranks}(?![\d,-])|\branks? {ranks} of '?{group}\b)"


DRIVER = r"\bdriver\b"


@dataclass(frozen=True)
class Side:
    """A participant: one line of the answer has all of it.

    Attributes:
        who: pattern of its name.
        at: the comment behind its line of the program; empty where nobody can know the line.
        doing: pattern of what it does there, or waits for.
    """

    who: str
    at: str
    doing: str


@dataclass(frozen=True)
class Exhibit:
    """A hang, and what has to be said of it.

    Attributes:
        verdict: pattern of the verdict's kind.
        code: exit code of ``rlinf-ctl stuck``.
        sides: who takes part.
        blame: pattern of who should have acted, or of what; in one line.
    """

    verdict: str
    code: int
    sides: tuple[Side, ...]
    blame: str


EXHIBITS = {
    "silent_server": Exhibit(
        "straggler",
        0,
        (
            Side(rank("reward", "1"), "waits for the server", "recv|socket|read"),
            Side(DRIVER, "the driver waits", r"reward\.score\b"),
        ),
        r"127\.0\.0\.1:\d+",
    ),
    "straggler": Exhibit(
        "straggler",
        0,
        (
            Side(rank("actor", "2"), "computes for long", "step"),
            Side(DRIVER, "the driver waits", r"actor\.step\b"),
        ),
        rf"{rank('actor', '0-1,3')}|ranks 0-1,3|3 of 4|3 other ranks",
    ),
    "gather_against_broadcast": Exhibit(
        "deadlock",
        1,
        (
            Side(rank("actor", "0"), "rank 0 waits", "all_gather"),
            Side(rank("actor", "1"), "rank 1 waits", "broadcast"),
            Side(DRIVER, "the driver waits", r"actor\.train\b"),
        ),
        "all_gather.*broadcast|broadcast.*all_gather",
    ),
    "exit_waits_for_thread": Exhibit(
        "nobody left",
        1,
        (Side(DRIVER, "the thread waits", "metrics"),),
        "(?i)(main|script).*(end|return|finish|exit)|exit.*thread",
    ),
    "dead_environment": Exhibit(
        "busy",
        0,
        (
            Side(rank("env", "0"), "waits for the simulator", "recv|read|pipe|socket"),
            Side(DRIVER, "the driver waits", r"env\.rollout\b"),
        ),
        r"(?i)(child|process|pid \d+).*(ended|zombie|dead|died|exit)",
    ),
    "no_more_producers": Exhibit(
        "nobody left",
        1,
        (
            Side(rank("learner", "0"), "waits for an episode", r"get\b.*episodes"),
            Side(DRIVER, "the driver waits", r"learner\.learn\b"),
        ),
        r"\benv\b.*(ended|closed|gone)",
    ),
    "calls_in_a_circle": Exhibit(
        "deadlock",
        1,
        (
            Side(rank("actor", "0"), "the actor waits for the critic", r"critic\.value\b"),
            Side(rank("critic", "0"), "the critic waits for the actor", r"actor\.policy\b"),
            Side(DRIVER, "the driver waits", r"actor\.step\b"),
        ),
        "one at a time|async def",
    ),
    "stopped_rank": Exhibit(
        "stopped",
        1,
        (
            Side(rank("rollout", "1"), "", r"stopped.*\bcollect\b|\bcollect\b.*stopped"),
            Side(DRIVER, "the driver waits", r"rollout\.collect\b"),
        ),
        "CONT",
    ),
    "blocked_loop": Exhibit(
        "deadlock|nobody left",
        1,
        (
            Side(DRIVER, "the loop waits for the thread", "join|feeder|thread"),
            Side(DRIVER, "the thread waits for the loop", "result|future|loop|lock"),
            Side(rank("rollout", "0"), "the rank waits for a prompt", r"get\b.*prompts"),
        ),
        r"\bloop\b",
    ),
}


@dataclass(frozen=True)
class Visit:
    """What was seen of an exhibit.

    Attributes:
        code: exit code of ``rlinf-ctl stuck``.
        said: what it printed.
        seconds: it took so long.
        left: processes of the run that there were after its end.
    """

    code: int
    said: str
    seconds: float
    left: list[int]


def visit(name: str, home: Path | None) -> Visit:
    with InspectedRun(MUSEUM / f"{name}.py", home=home) as run:
        run.wait_for("still", START_TIMEOUT_S)
        time.sleep(PAUSE_S)
        begun = time.monotonic()
        done = run.ask("stuck")
        seconds = time.monotonic() - begun
        assert run.process.poll() is None, f"{name} has not come to a standstill:\n{run.output}"
        return Visit(done.returncode, done.stdout + done.stderr, seconds, run.end())


def exhibits() -> list[object]:
    """The short ones come first, so that what begins before them does not wait for the others."""
    visits = sorted(product(EXHIBITS, (False, True)), key=lambda each: each not in MARKS)
    return [
        pytest.param(*each, marks=MARKS.get(each, pytest.mark.museum), id=f"{each[0]}{'-by-a-link' if each[1] else ''}")
        for each in visits
    ]


@pytest.fixture(scope="module")
def visits(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, bool], Future[Visit]]]:
    """Of those exhibits whose tests are to run: several at once, because they wait more than they compute."""
    home = tmp_path_factory.mktemp("home") / "link"
    home.symlink_to(MUSEUM.parents[1])
    selected = [item for item in request.session.items if item.path == Path(__file__)]
    chosen = [item.callspec.params for item in selected if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_ONCE) as guides:
        yield {
            (each["name"], each["by_link"]): guides.submit(visit, each["name"], home if each["by_link"] else None)
            for each in chosen
        }


def misses(exhibit: Exhibit, program: Path, said: str) -> list[str]:
    """What an answer lacks."""
    found = [] if re.search(exhibit.verdict, said, re.IGNORECASE) else [f"the verdict {exhibit.verdict!r}"]
    for side in exhibit.sides:
        place = re.escape(place_of(program, side.at)) + r"(?!\d)" if side.at else ""
        if not any(all(re.search(part, line) for part in (side.who, place, side.doing)) for line in said.splitlines()):
            found.append(f"a line with {side.who!r}, {place!r} and {side.doing!r}")
    if not re.search(exhibit.blame, said):
        found.append(f"who should have acted: {exhibit.blame!r}")
    return found


def place_of(program: Path, comment: str) -> str:
    (number,) = [
        number for number, line in enumerate(program.read_text().splitlines(), 1) if line.endswith(f"# {comment}")
    ]
    return f"{program}:{number}"


@pytest.mark.parametrize(("name", "by_link"), exhibits())
def test_stuck_names_who_waits_where_for_what_and_who_should_act(
    name: str, by_link: bool, visits: dict[tuple[str, bool], Future[Visit]]
) -> None:
    exhibit, seen = EXHIBITS[name], visits[name, by_link].result()
    print(f"{name}: exit code {seen.code} after {seen.seconds:.1f} s\n{seen.said}")
    assert misses(exhibit, MUSEUM / f"{name}.py", seen.said) == [], seen.said
    assert seen.code == exhibit.code
    assert re.search(r"\b\d+(\.\d+)? s\b", seen.said), f"no age:\n{seen.said}"
    assert seen.left == []
