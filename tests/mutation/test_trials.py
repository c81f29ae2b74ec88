"""Mutants of a small checkout: killed, alive, hanging, interrupted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests._support import leaks
from tests.mutation import __main__ as command
from tests.mutation.journal import Journal
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.reach import Reach
from tests.mutation.trials import CHECKOUT, Copy, Outcome, copied, judge

MODULE = "rlinf_async/_core/room.py"
FILES = {
    "rlinf_async/__init__.py": "",
    "rlinf_async/_core/__init__.py": "",
    MODULE: """
        def has_room(held, limit):
            return held < limit

        def fill(items, limit):
            while has_room(len(items), limit):
                items.append(None)

        def first(items):
            return items[0]

        def last(items):
            return items[-1]
    """,
    "tests/_core/test_room.py": """
        import os, sys
        from rlinf_async._core.room import fill, first, has_room

        def test_the_copy_is_imported_and_every_process_that_a_test_starts_imports_it():
            import rlinf_async
            assert os.getcwd() in rlinf_async.__file__
            assert os.getcwd() in sys.executable

        def test_there_is_room():
            assert has_room(1, 2)

        def test_fill():
            items = []
            fill(items, 3)
            assert items
    """,
    "tests/test_processes.py": """
        import os, subprocess, sys

        def test_a_process_that_is_killed():
            program = "from rlinf_async._core.room import last; last([1]); import os; os.kill(os.getpid(), 9)"
            assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    """,
    **{
        name: (CHECKOUT / name).read_text()
        for name in (
            "tests/_support/leaks.py",
            "tests/mutation/line_marks.py",
            "tests/mutation/mutants.py",
            "tests/mutation/reach_plugin.py",
            "tests/mutation/without_shrinking.py",
        )
    },
    "tests/simulation/__main__.py": """
        from rlinf_async._core.room import first
        print("30 seeds, 0 failed, 1.0 s" if first("ab") == "a" else "seed 7: a program")
    """,
}

BROKEN = """
import pytest

@pytest.mark.parametrize("way", ["both ways"])
def test_broken(way):
    assert False
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def copy(checkout: Path) -> Iterator[Copy]:
    with copied(checkout, 30) as made:
        yield made


@pytest.fixture(scope="module")
def reach(copy: Copy) -> Reach:
    return copy.record(1)


def find(checkout: Path, after: str) -> Mutant:
    source = (checkout / MODULE).read_bytes()
    return next(mutant for mutant in mutants_of(MODULE, source) if mutant.shown(source)[1] == after)


@pytest.mark.parametrize(
    ("after", "by"),
    [
        ("return items[1]", "seed 7"),
        ("while (not has_room(len(items), limit)):", "tests/_core/test_room.py::test_fill"),
        ("pass", "limit of 6 s"),
        ("return held <= limit", ""),
    ],
    ids=["killed by seeds", "killed by a test", "hang", "survivor"],
)
def test_a_mutant_is_killed_where_something_fails_or_hangs(
    copy: Copy, reach: Reach, checkout: Path, after: str, by: str
) -> None:
    before = (checkout / MODULE).read_bytes()
    assert judge(copy, reach, find(checkout, after), 6).by == by
    assert (copy.folder / MODULE).read_bytes() == before == (checkout / MODULE).read_bytes()


def test_a_line_is_reached_by_the_tests_whose_processes_run_it(reach: Reach, checkout: Path, tmp_path: Path) -> None:
    source = (checkout / MODULE).read_bytes()
    reach.save(tmp_path / "reach")
    loaded = Reach.load(tmp_path / "reach")

    def tests(text: str, source: bytes = source) -> set[str]:
        line = next(number for number, each in enumerate(source.decode().split("\n"), 1) if text in each)
        return {name.rpartition("::")[2] for name in loaded.tests(MODULE, line, source, 100)}

    its_own, others = {"test_there_is_room", "test_fill"}, {"test_a_process_that_is_killed"}
    assert tests("return held < limit") == its_own
    assert tests("items[-1]") == its_own | others, "its marks remain"
    assert tests("return held < limit", b"import os" + source) == its_own | others, (
        "lines of changed code are not known"
    )
    assert tests("def last") == its_own | others, "though a process alone imported the module itself"


def test_a_test_that_fails_without_a_mutant_kills_none(checkout: Path, reach: Reach) -> None:
    with copied(checkout, 0) as copy:
        (copy.folder / "tests/_core/test_room.py").write_text(BROKEN)
        reach = Reach(
            reach._offsets, reach._digests, [each._replace(test="tests/_core/test_room.py") for each in reach._tests]
        )
        outcome = judge(copy, reach, find(checkout, "return held <= limit"), 60, seeds=0)
    assert not outcome.killed
    assert not outcome.is_decided


def test_a_process_that_a_test_leaves_is_ended(copy: Copy) -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '100'], start_new_session=True).pid)"
    pid = int(copy.run(["-c", program], 30).output)
    assert leaks.wait_ended([pid], 10) == []


def play(checkout: Path, journal: Path, *arguments: str) -> Journal:
    flags = command.parse(["--simulated-seeds", "0", "--journal", str(journal), *arguments])
    command.run(flags, made := Journal(journal), checkout)
    return made


def test_what_has_run_before_an_interruption_does_not_run_again(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    killed_by = ["a test", "", KeyboardInterrupt(), *["a test"] * 20]

    def judge(copy: Copy, reach: Reach, mutant: Mutant, limit_s: float, seeds: int) -> Outcome:
        by = killed_by[len(ran)]
        ran.append(mutant.key)
        if isinstance(by, BaseException):
            raise by
        return Outcome(str(by), 1.0)

    monkeypatch.setattr(command, "judge", judge)
    journal = tmp_path / "mutants.jsonl"
    with pytest.raises(KeyboardInterrupt):
        play(checkout, journal)
    assert len(ran) == 3
    with open(journal, "a") as file:
        file.write('{"mutant": "to')  # the machine went down
    done = play(checkout, journal)
    assert ran[2] == ran[3]
    assert len(set(ran)) == len(ran) - 1 == len(done.outcomes())
    assert done.survivors() == {ran[1]}
    count = len(ran)
    play(checkout, journal)
    assert len(ran) == count
    assert play(checkout, journal, "--survivors").survivors() == set()
    assert ran[-1] == ran[1]
    (checkout / MODULE).write_text((checkout / MODULE).read_text() + "\nimport os\n")
    killed_by.extend(["a test"] * 20)
    play(checkout, journal, "--count", "2")
    assert len(ran) == count + 3


def test_the_page_has_the_survivors_and_the_verdicts(checkout: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "mutants.jsonl")
    journal.add({"count": 3, "seed": 0, "of": 9})
    source = (checkout / MODULE).read_bytes()
    outcomes = [["seed 7"], [""], ["", "tests/a.py::test_b"], [""]]
    mutants = mutants_of(MODULE, source)[: len(outcomes)]
    for mutant, each in zip(mutants, outcomes, strict=True):
        for by in each:
            journal.add_outcome(mutant, source, Outcome(by, 2.0))
    journal.add_outcome(mutants[0], source, Outcome("", 2.0, is_decided=False))
    journal.add_outcome(mutants[0], source, Outcome("seed 7", 2.0))  # under a longer limit
    journal.add({"equivalent": mutants[1].key, "because": "nobody asks"})
    page = Journal(journal.path).report()
    assert "4 mutants have run, 2 s each: 2 killed (50 %), 1 of them by seeds, 1 equivalent, 1 open." in page
    assert "| rlinf_async/_core | 4 | 2 | 1 | 1 | 1 |" in page
    verdicts = {line.split(" | ")[0][2:]: line.split(" | ")[-1] for line in page.splitlines() if MODULE in line}
    assert verdicts == {
        mutants[1].key: "equivalent: nobody asks |",
        mutants[2].key: "test added: `tests/a.py::test_b` |",
        mutants[3].key: "open |",
    }


def test_the_page_is_made_of_the_journal() -> None:
    journal = CHECKOUT / "docs/mutants.jsonl"
    assert journal.with_suffix(".md").read_text() == Journal(journal).report(), "python -m tests.mutation --report"
