from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from problems import Problem, ProblemSets, ProblemSpace
from tokenizer import CHARACTERS, CharacterTokenizer
from verifier import is_correct

from rlinf_async.errors import ConfigError

SPACE = ProblemSpace(terms=2, largest=99)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_held_out_is_never_trained_on(seed: int) -> None:
    sets = ProblemSets.draw(SPACE, 512, 256, 8192, seed)
    held_out, selection, training = map(set, (sets.held_out, sets.selection, sets.training))
    assert (len(held_out), len(selection), len(training)) == (512, 256, 8192)
    assert not held_out & selection
    assert not held_out & training
    assert not selection & training


def test_every_run_is_judged_by_the_same_problems_and_learns_from_others() -> None:
    one, other = (ProblemSets.draw(SPACE, 512, 256, 1024, seed) for seed in (0, 1))
    assert (one.held_out, one.selection) == (other.held_out, other.selection)
    assert one.training != other.training
    assert one == ProblemSets.draw(SPACE, 512, 256, 1024, 0)


def test_a_space_that_is_too_small_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"too few problems of 2 terms up to 9 .* raise data\.terms"):
        ProblemSets.draw(ProblemSpace(2, 9), 64, 32, 1024, 0)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 5), st.integers(1, 999), st.integers(0, 100))
def test_a_worked_solution_is_right_never_below_zero_and_of_bounded_length(terms: int, largest: int, seed: int) -> None:
    space = ProblemSpace(terms, largest)
    for problem in itertools.islice(space.draw([seed]), 20):
        assert Problem.parse(problem.prompt) == problem
        assert is_correct(problem.prompt, problem.solution)
        assert "=-" not in "=" + problem.solution
        assert len(problem.solution) <= space.longest_solution
        assert len(problem.solution.split("=")) == terms - 1


def test_a_solution_writes_down_what_is_left_to_do() -> None:
    problem = Problem((27, 48, -31))
    assert (problem.prompt, problem.solution) == ("27+48-31=", "75-31=44")


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
    tokenizer = CharacterTokenizer()
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    left, right = tokenizer.pad_left(texts), tokenizer.pad_right(texts)
    assert [tokenizer.decode(row) for row in left] == [tokenizer.decode(row) for row in right] == texts
    assert len({len(row) for row in left}) == len({len(row) for row in right}) == 1
    assert all(index < tokenizer.vocabulary_size for row in right for index in row)


def test_what_has_no_token_is_named() -> None:
    with pytest.raises(ValueError, match=r"'2x3' has characters without a token: \['x'\]"):
        CharacterTokenizer().encode("2x3")


def test_a_tokenizer_is_kept_in_a_folder(tmp_path: Path) -> None:
    CharacterTokenizer("abc").save(tmp_path / "kept")
    assert CharacterTokenizer.load(tmp_path / "kept").encode("cab") == [4, 2, 3]
    assert CharacterTokenizer.load(None).characters == CHARACTERS


def test_a_missing_tokenizer_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor\.tokenizer\.tokenizer_model: no tokenizer in .*nowhere"):
        CharacterTokenizer.load(tmp_path / "nowhere")
