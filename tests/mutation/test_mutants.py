"""Mutants: their places and their draw."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.mutants import PACKAGES, Mutant, draw, mutants_of
from tests.mutation.trials import CHECKOUT


def mutated(source: str) -> list[str]:
    """Return the first changed line of each mutant."""
    return [mutant.shown(source.encode())[1] for mutant in mutants_of("m.py", source.encode())]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a < b >= c", ["x = a <= b >= c", "x = a < b > c"]),
        ("x = a is not b", ["x = a is b"]),
        ("x = (a) not in b  # in", ["x = (a) in b  # in"]),
        ("x = a and b and c", ["x = a or b and c", "x = a and b or c"]),
        ("x = not a", ["x =  a"]),
        ("x = f(0, 3, True)", ["x = f(1, 3, True)", "x = f(0, 3, False)"]),
        ("x = 1", ["x = 0", "x = 2"]),
        ("x = a - b", ["x = a + b", "x = (b) - (a)"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("if ready(): x = a", ["if (not ready()): x = a"]),
        ("waiting.set()", ["pass"]),
        ("async def f():\n    await event.wait()", ["pass"]),
        ("def f():\n    g.x = None", ["pass"]),
        ("x += n", ["x -= n", "pass"]),
        ("def f():\n    return x", ["return None"]),
        ("for x in y: break", ["for x in y: continue"]),
        ("x = 'ä' if a == b else c", ["x = 'ä' if a != b else c"]),
    ],
)  # fmt: skip
def test_a_mutant_changes_one_place(source: str, after: list[str]) -> None:
    assert sorted(mutated(source)) == sorted(after)


@pytest.mark.parametrize(
    "source",
    [
        '"""Room for 1 and not 2."""',
        "logger.warning('%d', a + 1)",
        "raise ValueError(a + 1)",
        "x = f'{a + 1}'",
        "def f(x: Literal[1]) -> Literal[2]: ...",
        "class C:\n    def __repr__(self):\n        return str(self.x + 1)",
        "if TYPE_CHECKING:\n    x = 1",
        "@overload\ndef f(x=1): ...",
        "class Kind(IntEnum):\n    FIRST = 1",
        "x = field(repr=False)",
        "x = 1 << 20",
        "class C:\n    def __init__(self):\n        self.x = None",
        "def end_scripts(pids):\n    os.kill(pids[0], 9)",
    ],
)
def test_texts_types_sizes_and_kills_of_processes_have_no_mutants(source: str) -> None:
    assert mutated(source) == []


def test_every_mutant_of_a_module_is_another_program() -> None:
    module = "rlinf_async/_core/resend.py"
    source = (CHECKOUT / module).read_bytes()
    original = ast.dump(ast.parse(source))
    found = mutants_of(module, source)
    assert len(found) > 50
    assert len({mutant.key for mutant in found}) == len(found)
    for mutant in found[::5]:
        assert ast.dump(ast.parse(mutant.apply(source))) != original, mutant


def test_the_key_of_a_mutant_outlives_a_change_elsewhere() -> None:
    first, second = (mutants_of("m.py", source) for source in (b'"""It."""\nx = a < b', b"y = a\n\nx = a < b"))
    assert [mutant.key for mutant in first] == [mutant.key for mutant in second]
    assert [mutant.line for mutant in second] == [3]
    assert first[0].source != second[0].source


def test_words_change_neither_the_key_nor_the_source() -> None:
    first, second = (
        mutants_of("m.py", source)
        for source in (b'"""It."""\nx = a < b', b'"""What it is."""\n# Why.\nx = a < b  # A reason.')
    )
    assert [(each.key, each.source) for each in first] == [(each.key, each.source) for each in second]


@pytest.fixture(scope="module")
def drawn() -> list[Mutant]:
    return draw(CHECKOUT, 300, 0)[0]


def test_a_seed_draws_the_same_mutants_and_a_larger_draw_begins_with_them(drawn: list[Mutant]) -> None:
    assert draw(CHECKOUT, 40, 0)[0] == drawn[:40]
    assert draw(CHECKOUT, 40, 1)[0] != drawn[:40]


def test_each_package_has_a_share_of_the_draw_by_its_size(drawn: list[Mutant]) -> None:
    _, of = draw(CHECKOUT, 0, 0)
    for package in PACKAGES:
        _, there = draw(CHECKOUT, 0, 0, package)
        share = sum(mutant.module.startswith(package) for mutant in drawn) / len(drawn)
        assert share == pytest.approx(there / of, abs=0.05), package


def test_only_chooses_modules() -> None:
    found, of = draw(CHECKOUT, 10, 0, "_wire")
    assert len(found) == 10 < of
    assert {mutant.module.split("/")[1] for mutant in found} == {"_wire"}
