"""Comments that name tests, and the language of docstrings: a ratchet that only turns one way."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlinf_async", "launcher")
NAMED = re.compile(r"\b(tests/[\w/]+\.py)::(?:\n *# )?(\w+)")

SUBJECTLESS_STARTS = r"What|Who|Whom|Whoever|Of|By which|For which|That which|Those|Nobody"
SUBJECTLESS_SENTENCE = re.compile(rf"(?:^|(?<=[.:!?;])\s+)((?:{SUBJECTLESS_STARTS})\b[^.!?]*)(?=[.!\n]|$)")
NO_NOUN = re.compile(
    r"(?:About|Above|Across|After|Against|Along|Among|Around|As|At|Before|Behind|Below|Beside|Between|Beyond|By|During"
    r"|For|From|In|Inside|Into|Like|Of|Off|On|Onto|Out|Outside|Over|Per|Since|Through|To|Towards?|Under|Until|Upon|Via"
    r"|With|Within|Without|He|Her|His|It|Its|Nobody|Nothing|She|Something|That|Their|Them|These|They|This|Those|We|What"
    r"|Which|Who|Whoever|Whom|Whose|You|Your|Whether)\b"
)
FILLING_WORDS = set("the a an of or and its this that is are it for to in none by if as".split())  # noqa: SIM905


class Ratchet(NamedTuple):
    """A count that may only fall."""

    known: int
    goal: int


SUBJECTLESS = "sentences without a subject"
REPEATING = "docstrings that repeat a private name"
NOUNLESS = "docstrings of attributes that begin with a preposition or a pronoun"
AMBIGUOUS = "class names with two meanings"
PRIVATE_LINES = "docstring lines of private things"
RATCHETS = {
    SUBJECTLESS: Ratchet(0, goal=20),
    REPEATING: Ratchet(0, goal=0),
    NOUNLESS: Ratchet(0, goal=10),
    AMBIGUOUS: Ratchet(0, goal=0),
    PRIVATE_LINES: Ratchet(5985, goal=6480),
}
ALIKE = {
    "AsyncRouteWork": "RLinf's class is the framework's with the constructor that RLinf's programs call",
    "Cluster": "RLinf's programs build the run's only cluster under the name that the framework's own class has",
    "Worker": "RLinf's base class of workers is the framework's with RLinf's methods",
}
"""Class names that may stand twice: a subclass in ``rlinf_async.rlinf`` bears the name that RLinf's programs import."""


class Offence(NamedTuple):
    file: str
    first_line: int
    last_line: int
    text: str


class Docstring(NamedTuple):
    """A docstring with the definition or the assignment that it describes."""

    constant: ast.Constant
    owner: ast.stmt | ast.Module
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        assert isinstance(self.constant.value, str)
        return self.constant.value

    def offence(self, file: str, text: str) -> Offence:
        return Offence(file, self.constant.lineno, self.constant.end_lineno or self.constant.lineno, text)


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(text)
        if not (CHECKOUT / path).is_file() or not re.search(rf"\bdef {name}\(", (CHECKOUT / path).read_text())
    ]


def docstrings(owner: ast.stmt | ast.Module, names: tuple[str, ...] = ()) -> Iterator[Docstring]:
    """Yield every docstring below a module or statement, with the names that lead to it."""
    documented = isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "orelse", "finalbody", "handlers"):
        before = owner if documented and field == "body" else None
        for statement in getattr(owner, field, ()):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str) and before is not None:
                    assigned = () if before is owner else (assigned_name(before),)
                    yield Docstring(statement.value, before, (*names, *assigned))
            else:
                inner = getattr(statement, "name", None) if not isinstance(statement, ast.ExceptHandler) else None
                yield from docstrings(statement, (*names, inner) if inner else names)
            before = statement if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def assigned_name(statement: ast.stmt | ast.Module) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def subjectless_sentences(text: str) -> list[str]:
    """Return the sentences without a named subject: relative clauses as nouns, bare genitives."""
    return [" ".join(sentence.split()) for sentence in SUBJECTLESS_SENTENCE.findall(text)]


def repeats_its_name(docstring: Docstring) -> bool:
    """True if a private attribute's docstring has no word that name and annotation lack."""
    name = docstring.names[-1]
    if not name.startswith("_"):
        return False
    annotation = getattr(docstring.owner, "annotation", None)
    known = words(name) | (words(ast.unparse(annotation)) if annotation else set())
    return words(docstring.text) - FILLING_WORDS <= known


def words(text: str) -> set[str]:
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def is_private(file: str, names: tuple[str, ...]) -> bool:
    """True below any name with an underscore, and in the launcher, which users do not import."""
    path = [part for part in (*file.removesuffix(".py").split("/"), *names) if part != "__init__"]
    return path[0] == "launcher" or any(part.startswith("_") and not part.startswith("__") for part in path)


def offences_in(file: str, source: str) -> dict[str, list[Offence]]:
    """Return by kind what is wrong with the docstrings of one file."""
    found: dict[str, list[Offence]] = {kind: [] for kind in RATCHETS}
    for docstring in docstrings(ast.parse(source)):
        whole = docstring.offence(file, docstring.text)
        found[SUBJECTLESS] += [docstring.offence(file, sentence) for sentence in subjectless_sentences(docstring.text)]
        if isinstance(docstring.owner, ast.Assign | ast.AnnAssign):
            found[REPEATING] += [whole] * repeats_its_name(docstring)
            found[NOUNLESS] += [whole] * bool(NO_NOUN.match(docstring.text))
        if docstring.names and is_private(file, docstring.names):
            found[PRIVATE_LINES] += [whole] * (whole.last_line - whole.first_line + 1)
    return found


def class_names_with_two_meanings(sources: Mapping[str, str]) -> list[Offence]:
    """Return each class whose name, but for underscores, another file's class has too."""
    by_name: dict[str, list[Offence]] = {}
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name.lstrip("_"), []).append(Offence(file, node.lineno, node.lineno, node.name))
    return [
        group[0]._replace(text=f"{name}: also {', '.join(f'{each.file}:{each.first_line}' for each in group[1:])}")
        for name, group in sorted(by_name.items())
        if len(group) > 1 and name not in ALIKE
    ]


@functools.cache
def offences() -> dict[str, list[Offence]]:
    paths = [path for package in PACKAGES for path in sorted((CHECKOUT / package).rglob("*.py"))]
    sources = {str(path.relative_to(CHECKOUT)): path.read_text() for path in paths}
    found: dict[str, list[Offence]] = {kind: [] for kind in RATCHETS}
    for file, source in sources.items():
        for kind, offences_of_file in offences_in(file, source).items():
            found[kind] += offences_of_file
    found[AMBIGUOUS] = class_names_with_two_meanings(sources)
    return found


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


def changed_lines() -> set[tuple[str, int]]:
    """Return the lines added since the merge base with the main branch, uncommitted ones included."""
    if Path(git("rev-parse", "--show-toplevel").strip() or "/") != CHECKOUT:
        pytest.skip("not a git checkout; clone the repository to check changed lines")
    base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main") or git("rev-parse", "HEAD")
    lines: set[tuple[str, int]] = set()
    file = ""
    for row in git("diff", "-U0", base.strip(), "--", *PACKAGES).splitlines():
        if row.startswith("+++ "):
            file = row.removeprefix("+++ b/")
        elif match := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", row):
            start, count = int(match[1]), int(match[2] or 1)
            lines |= {(file, line) for line in range(start, start + count)}
    return lines


def test_every_test_that_the_code_names_exists() -> None:
    files = [file for folder in PACKAGES for file in (CHECKOUT / folder).rglob("*.py")]
    texts = {file.relative_to(CHECKOUT): file.read_text() for file in files}
    assert any(NAMED.search(text) for text in texts.values())
    wrong = [f"{file}: there is no {name}" for file, text in texts.items() for name in missing(text)]
    assert not wrong, "\n".join(wrong)


def test_a_name_that_no_test_has_is_seen() -> None:
    here = "tests/test_comments.py"
    assert missing(f"# {here}::test_a_name_that_no_test_has_is_seen") == []
    assert missing(f"# {here}::\n    # test_gone, tests/gone.py::test_x") == [
        f"{here}::test_gone",
        "tests/gone.py::test_x",
    ]


@pytest.mark.parametrize("kind", [SUBJECTLESS, REPEATING, NOUNLESS])
def test_changed_docstrings_have_subjects_and_say_something(kind: str) -> None:
    changed = changed_lines()
    wrong = [
        f"{offence.file}:{offence.first_line}: {offence.text.strip()!r}"
        for offence in offences()[kind]
        if any((offence.file, line) in changed for line in range(offence.first_line, offence.last_line + 1))
    ]
    assert not wrong, "give each sentence a subject, or delete what name and type say already:\n" + "\n".join(wrong)


@pytest.mark.parametrize("kind", RATCHETS)
def test_the_count_of_poor_words_never_rises(kind: str) -> None:
    known, goal = RATCHETS[kind]
    found = offences()[kind]
    texts = sorted({f"{offence.file}:{offence.first_line}: {' '.join(offence.text.split())[:80]}" for offence in found})
    assert len(found) <= known, f"{len(found)} {kind}, {known} before (goal {goal}):\n" + "\n".join(texts[:500])
    assert len(found) == known, f"{len(found)} {kind}, {known} before: write {len(found)} into {Path(__file__).name}"


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("Return the queue.", 0),
        ("What is heard and not acted on yet.", 1),
        ("Deliver one message.  Whoever waits is woken.", 1),
        ("Deliver one message. Of the rest, none.\n\nThose that wait go on.", 2),
        ("Ask: what next?", 0),
        ("What is it?  The answer.", 0),
        ("Whatever is left stays.", 0),
    ],
)
def test_sentences_without_a_subject_are_counted(text: str, odd: int) -> None:
    assert len(subjectless_sentences(text)) == odd


def test_docstrings_of_every_poor_kind_are_seen() -> None:
    source = """
_open_calls: int = 0
'''The open calls.'''
_lease_s = 3
'''Seconds of silence.'''
x = 1
'''By the name of a group.'''
class C:
    def _close(self):
        '''Close it,

        and all that it has.
        '''
"""
    lines = {kind: [offence.first_line for offence in found] for kind, found in offences_in("a.py", source).items()}
    assert (lines[REPEATING], lines[NOUNLESS]) == ([3], [7])
    assert lines[PRIVATE_LINES] == [3, 5, 10, 10, 10, 10]


def test_a_class_name_that_stands_twice_is_seen() -> None:
    sources = {"a.py": "class Link: ...\nclass Cluster: ...", "b.py": "class _Link: ...\nclass Cluster: ..."}
    assert [offence.text for offence in class_names_with_two_meanings(sources)] == ["Link: also b.py:1"]
