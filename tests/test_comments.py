"""Comments that name tests, and the language of docstrings: a ratchet that only turns one way."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlinf_async", "launcher")
NAMED = re.compile(r"\b(tests/[\w/]+\.py)::(?:\n *# )?(\w+)")

STARTS = r"What|Who|Whom|Whoever|Of|By which|For which|That which|Those|Nobody"
ODD_START = re.compile(rf"(?:^|(?<=[.:!?;])\s+)((?:{STARTS})\b[^.!?]*)(?=[.!\n]|$)")
ODD_STARTS = 391
REPEATING_DOCSTRINGS = 2
FILLING_WORDS = set("the a an of or and its this that is are it for to in none by if as".split())  # noqa: SIM905


class Offence(NamedTuple):
    file: str
    first_line: int
    last_line: int
    text: str


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(text)
        if not (CHECKOUT / path).is_file() or not re.search(rf"\bdef {name}\(", (CHECKOUT / path).read_text())
    ]


def docstrings(tree: ast.AST) -> Iterator[tuple[ast.Constant, ast.stmt | None]]:
    """Yield every docstring, with the assignment that it describes or None."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            if not isinstance(statement, ast.Expr) or not isinstance(text := statement.value, ast.Constant):
                continue
            if isinstance(text.value, str) and (
                isinstance(before, ast.Assign | ast.AnnAssign) or (documented and not before)
            ):
                yield text, before


def odd_sentences(text: str) -> list[str]:
    """Return the sentences without a named subject: relative clauses as nouns, bare genitives."""
    return [" ".join(sentence.split()) for sentence in ODD_START.findall(text)]


def repeats_its_name(text: str, assignment: ast.stmt) -> bool:
    """True if a private attribute's docstring has no word that name and annotation lack."""
    target = assignment.targets[0] if isinstance(assignment, ast.Assign) else getattr(assignment, "target", None)
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    if not name.startswith("_"):
        return False
    annotation = assignment.annotation if isinstance(assignment, ast.AnnAssign) else None
    known = words(name) | (words(ast.unparse(annotation)) if annotation else set())
    return words(text) - FILLING_WORDS <= known


def words(text: str) -> set[str]:
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def offences_in(file: str, source: str) -> tuple[list[Offence], list[Offence]]:
    """Return the odd sentences, and the docstrings that repeat a private name, of one file."""
    odd, repeating = [], []
    for constant, assignment in docstrings(ast.parse(source)):
        lines = constant.lineno, constant.end_lineno or constant.lineno
        odd += [Offence(file, *lines, sentence) for sentence in odd_sentences(constant.value)]
        if assignment is not None and repeats_its_name(constant.value, assignment):
            repeating.append(Offence(file, *lines, constant.value))
    return odd, repeating


@functools.cache
def offences() -> tuple[list[Offence], list[Offence]]:
    odd, repeating = [], []
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            of_file = offences_in(str(path.relative_to(CHECKOUT)), path.read_text())
            odd += of_file[0]
            repeating += of_file[1]
    return odd, repeating


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


def test_changed_docstrings_have_sentences_with_a_subject() -> None:
    changed = changed_lines()
    wrong = [
        f"{offence.file}:{offence.first_line}: {offence.text.strip()!r}"
        for kind in offences()
        for offence in kind
        if any((offence.file, line) in changed for line in range(offence.first_line, offence.last_line + 1))
    ]
    assert not wrong, "give each sentence a subject, or delete what name and type say already:\n" + "\n".join(wrong)


@pytest.mark.parametrize(("kind", "known"), [(0, ODD_STARTS), (1, REPEATING_DOCSTRINGS)])
def test_the_count_of_odd_docstrings_never_rises(kind: int, known: int) -> None:
    found = len(offences()[kind])
    assert found <= known, f"{found - known} more than before; the test of changed lines names them"
    assert found == known, (
        f"{known - found} fewer than before: write {found} into {Path(__file__).name}, so that it stays"
    )


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
    assert len(odd_sentences(text)) == odd


def test_a_private_docstring_that_says_nothing_is_seen() -> None:
    source = (
        '_open_calls: int = 0\n"""The open calls."""\n_lease_s = 3\n"""Seconds of silence."""\nx = 1\n"""The x."""\n'
    )
    assert [offence.first_line for offence in offences_in("a.py", source)[1]] == [2]
