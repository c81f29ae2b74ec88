from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from arithmetic import Arithmetic
from countdown import Countdown
from hypothesis import given, settings, strategies as st
from problem_sets import ProblemSets
from task import Task
from tokenizer import CharacterTokenizer

from rlinf_async.errors import ConfigError

SPACE = Arithmetic(terms=2, largest=99)
COUNTDOWN = Countdown(terms=3, largest=9)
CHARACTERS = Arithmetic.characters
is_correct = SPACE.is_correct


@pytest.mark.parametrize("seed", [0, 1, 2, 2**40 + 1])
@pytest.mark.parametrize(("task", "sizes"), [(SPACE, (512, 256, 8192)), (COUNTDOWN, (256, 128, 768))])
def test_what_is_held_out_is_never_trained_on(seed: int, task: Task, sizes: tuple[int, int, int]) -> None:
    sets = ProblemSets.draw(task, *sizes, seed)
    held_out, selection, training = map(set, (sets.held_out, sets.selection, sets.training))
    assert (len(held_out), len(selection), len(training)) == sizes
    assert not held_out & selection
    assert not held_out & training
    assert not selection & training


def test_every_run_is_judged_by_the_same_problems_and_learns_from_others() -> None:
    one, other = (ProblemSets.draw(SPACE, 512, 256, 1024, seed) for seed in (0, 1))
    assert (one.held_out, one.selection) == (other.held_out, other.selection)
    assert one.training != other.training
    assert one == ProblemSets.draw(SPACE, 512, 256, 1024, 0)


def test_a_space_that_is_too_small_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"too few problems of .*largest=9\) .* raise data\.terms"):
        ProblemSets.draw(Arithmetic(2, 9), 64, 32, 1024, 0)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 5), st.integers(1, 999), st.integers(0, 100))
def test_a_worked_solution_is_right_never_below_zero_and_of_bounded_length(terms: int, largest: int, seed: int) -> None:
    space = Arithmetic(terms, largest)
    for prompt in itertools.islice(space.draw([seed]), 20):
        solution = space.demonstrate(prompt, np.random.default_rng(0))
        assert space.is_correct(prompt, solution)
        assert "=-" not in "=" + solution
        assert len(solution) <= space.longest_response
        assert len(solution.split("=")) == terms - 1


def test_a_solution_writes_down_what_is_left_to_do() -> None:
    assert SPACE.demonstrate("27+48-31=", np.random.default_rng(0)) == "75-31=44"


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 5), st.integers(1, 25), st.integers(0, 100))
def test_a_countdown_demonstration_uses_the_numbers_and_knows_no_target(terms: int, largest: int, seed: int) -> None:
    task = Countdown(terms, largest)
    for prompt in itertools.islice(task.draw([seed]), 10):
        numbers, _, target = prompt.rstrip(":").partition("=")
        elsewhere = f"{numbers}={int(target) + 1}:"
        shown, same = (task.demonstrate(text, np.random.default_rng(seed)) for text in (prompt, elsewhere))
        assert shown == same
        assert task.resembles_demonstration(prompt, shown)
        assert len(shown) <= task.longest_response
        assert set(prompt + shown) <= set(task.characters)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("2*3+7", True),
        ("7+3*2", True),
        ("2+3*7", False),
        ("3+2*7", False),
        ("7+6", False),
        ("13", False),
        ("7+3+3", False),
        ("7+3*2+", False),
        ("7+(3*2)", False),
        ("9" * 5000, False),
        ("", False),
        (None, False),
    ],
)
def test_countdown_is_solved_by_the_value_of_all_numbers_used_once(response: str | None, right: bool) -> None:
    assert COUNTDOWN.is_correct("2,3,7=13:", response) is right


def test_every_countdown_problem_can_be_solved() -> None:
    for prompt in itertools.islice(COUNTDOWN.draw([5]), 30):
        numbers = prompt.partition("=")[0].split(",")
        expressions = (
            "".join(itertools.chain(*zip(order, (*operators, ""), strict=True)))
            for order in itertools.permutations(numbers)
            for operators in itertools.product("+-*", repeat=2)
        )
        assert any(COUNTDOWN.is_correct(prompt, expression) for expression in expressions), prompt


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("44", True),
        ("75-31=44", True),
        ("1=2=44", True),
        ("45", False),
        ("044", False),
        ("+44", False),
        ("-44", False),
        ("44=", False),
        ("75-31", False),
        ("4٤", False),
        ("", False),
        (None, False),
    ],
)
def test_the_verifier_believes_only_the_last_number(response: str | None, right: bool) -> None:
    assert is_correct("27+48-31=", response) is right


def test_the_verifier_works_the_problem_out_and_knows_zero() -> None:
    assert is_correct("5-5=", "0")
    assert not is_correct("5-5=", "-0")
    assert not is_correct("5-5=", "00")


@pytest.mark.parametrize("prompt", ["", "27+48", "27=", "27+=", "+27+48=", "27*48=", "__import__('os')="])
def test_what_is_no_problem_is_never_judged(prompt: str) -> None:
    with pytest.raises(ValueError, match="no arithmetic problem"):
        is_correct(prompt, "44")


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text(CHARACTERS, min_size=1, max_size=20), min_size=1, max_size=5))
def test_texts_come_back_from_their_tokens(texts: list[str]) -> None:
    tokenizer = CharacterTokenizer(CHARACTERS)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    left, right = tokenizer.pad_left(texts), tokenizer.pad_right(texts)
    assert [tokenizer.decode(row) for row in left] == [tokenizer.decode(row) for row in right] == texts
    assert len({len(row) for row in left}) == len({len(row) for row in right}) == 1
    assert all(index < tokenizer.vocabulary_size for row in right for index in row)


def test_what_has_no_token_is_named() -> None:
    with pytest.raises(ValueError, match=r"'2x3' has characters without a token: \['x'\]"):
        CharacterTokenizer(CHARACTERS).encode("2x3")


def test_a_tokenizer_is_kept_in_a_folder(tmp_path: Path) -> None:
    CharacterTokenizer("abc").save(tmp_path / "kept")
    assert CharacterTokenizer.load(tmp_path / "kept", CHARACTERS).encode("cab") == [4, 2, 3]
    assert CharacterTokenizer.load(None, CHARACTERS).characters == CHARACTERS


def test_a_missing_tokenizer_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor\.tokenizer\.tokenizer_model: no tokenizer in .*nowhere"):
        CharacterTokenizer.load(tmp_path / "nowhere", CHARACTERS)
