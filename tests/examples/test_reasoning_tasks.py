"""Generated tasks, and rows of data."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import arithmetic
import countdown
import numpy as np
import pytest
from arithmetic import Arithmetic
from countdown import Countdown
from generated_data import generate_data
from hypothesis import given, settings, strategies as st
from reasoning_config import SCHEMA
from rows import Row, ShuffledRows, read_rows, write_rows

from rlinf_async.errors import ConfigError

SEVEN = {"numbers": [2, 3, 7], "target": 13}


def generate(folder: Path, *overrides: str, config: str = "countdown_disaggregated") -> dict[str, list[Row]]:
    generate_data(SCHEMA.load(config, overrides), folder)
    return {path.stem: read_rows(path) for path in folder.iterdir()}


def prompts(rows: list[Row]) -> set[str]:
    return {row.prompt[0]["content"] for row in rows}  # type: ignore[index]


@pytest.mark.parametrize("config", ["countdown_disaggregated", "two_terms_disaggregated"])
@pytest.mark.parametrize("seed", [0, 2**40 + 1])
def test_what_is_held_out_is_never_trained_on(seed: int, config: str, tmp_path: Path) -> None:
    found = generate(tmp_path, f"runner.seed={seed}", "data.train_size=1024", config=config)
    held_out, training, taught = (prompts(found[name]) for name in ("eval", "train", "demonstrations"))
    assert (len(held_out), len(training)) == (512, 1024)
    assert not held_out & training
    assert taught == training


def test_every_run_is_judged_by_the_same_problems_and_learns_from_others(tmp_path: Path) -> None:
    one, other, again = (
        generate(tmp_path / name, f"runner.seed={seed}", "data.train_size=64")
        for name, seed in (("one", 0), ("other", 1), ("again", 0))
    )
    assert one["eval"] == other["eval"]
    assert one["train"] != other["train"]
    assert one == again


def test_a_prompt_has_the_template_that_is_configured(tmp_path: Path) -> None:
    own = ("data.train_size=64", "actor.model.model_path=mine")
    found = generate(tmp_path, "data.prompt='Make {target} of {numbers}.'", *own)
    row = found["train"][0]
    numbers = ",".join(map(str, row.meta["numbers"]))
    assert row.prompt == [{"role": "user", "content": f"Make {row.meta['target']} of {numbers}."}]
    with pytest.raises(ConfigError, match=r"data\.prompt: 'Make \{goal\}' .* use \{numbers\} and \{target\}"):
        generate(tmp_path, "data.prompt='Make {goal}'", *own)
    with pytest.raises(ConfigError, match=r"data\.prompt: the model that is made here has no token for ' '"):
        generate(tmp_path, "data.prompt='Make {target} of {numbers}.'")


def test_a_space_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"too few problems of .*largest=3\) .* raise data\.terms"):
        generate(tmp_path, "data.largest=3")


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 5), st.integers(1, 999), st.integers(0, 100))
def test_a_worked_solution_is_right_and_never_below_zero(terms: int, largest: int, seed: int) -> None:
    task = Arithmetic(terms, largest)
    for meta in itertools.islice(task.draw([seed]), 20):
        solution = task.demonstrate(meta, np.random.default_rng(0))
        assert arithmetic.reward(None, solution, meta) == 1.0
        assert "=-" not in "=" + solution
        assert len(solution.split("=")) == terms - 1


def test_a_solution_writes_down_what_is_left_to_do() -> None:
    meta = {"terms": [27, 48, -31]}
    assert Arithmetic(3, 99).words(meta) == {"problem": "27+48-31"}
    assert Arithmetic(3, 99).demonstrate(meta, np.random.default_rng(0)) == "75-31=44"


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(2, 5), st.integers(1, 25), st.integers(0, 100))
def test_a_countdown_demonstration_uses_the_numbers_and_knows_no_target(terms: int, largest: int, seed: int) -> None:
    task = Countdown(terms, largest)
    for meta in itertools.islice(task.draw([seed]), 10):
        elsewhere = meta | {"target": meta["target"] + 1}
        shown, same = (task.demonstrate(each, np.random.default_rng(seed)) for each in (meta, elsewhere))
        assert shown == same
        value = eval(shown)  # digits, +, - and *: what Python computes is the rule
        assert countdown.reward(None, shown, meta | {"target": value}) == 1.0


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("2*3+7", True),
        ("7 + 3 * 2", True),
        ("2+3*7", False),
        ("7+6", False),
        ("13", False),
        ("7+3+3", False),
        ("7+3*2+", False),
        ("7+(3*2)", False),
        ("2 3*7", False),
        ("9" * 5000, False),
        ("", False),
    ],
)
def test_countdown_is_solved_by_the_value_of_all_numbers_used_once(response: str, right: bool) -> None:
    assert countdown.reward("2,3,7=13:", response, SEVEN) == float(right)


def test_every_countdown_problem_can_be_solved() -> None:
    for meta in itertools.islice(Countdown(3, 9).draw([5]), 30):
        expressions = (
            "".join(itertools.chain(*zip(map(str, order), (*operators, ""), strict=True)))
            for order in itertools.permutations(meta["numbers"])
            for operators in itertools.product("+-*", repeat=2)
        )
        assert any(countdown.reward(None, expression, meta) for expression in expressions), meta


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("44", True),
        ("75-31=44", True),
        ("1=2=44", True),
        ("45", False),
        ("044", False),
        ("+44", False),
        ("44=", False),
        ("75-31", False),
        ("4٤", False),
        ("", False),
    ],
)
def test_arithmetic_believes_only_the_last_number(response: str, right: bool) -> None:
    assert arithmetic.reward("27+48-31=", response, {"terms": [27, 48, -31]}) == float(right)


# -- rows -----------------------------------------------------------------------------------------------------------


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [Row("2+2=", {"answer": 4}), Row([{"role": "user", "content": "zwei?"}])]
    write_rows(tmp_path / "data" / "rows.jsonl", rows)
    assert read_rows(tmp_path / "data" / "rows.jsonl") == rows


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt"',
        '["2+2="]',
        "{}",
        '{"prompt": ""}',
        '{"messages": ["hi"]}',
        '{"prompt": "a", "meta": 3}',
        '{"messages": 3}',
    ],
)
def test_a_line_that_is_no_row_is_named_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "2+2="}) + "\n\n" + line + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 3: .* is no row .*: write an object with messages"):
        read_rows(path)


@pytest.mark.parametrize(("text", "complaint"), [(None, "no data in .*No such file"), ("\n", "has no rows")])
def test_a_file_without_rows_is_named(text: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_rows(path)


def test_every_epoch_has_every_row_in_an_order_of_its_own() -> None:
    rows = [Row(str(number)) for number in range(20)]
    shuffled, again = ShuffledRows(rows, 7), ShuffledRows(rows, 7)
    epochs = [[shuffled[epoch * 20 + place].prompt for place in range(20)] for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) == set(epochs[1]) == {row.prompt for row in rows}
    assert [again[place].prompt for place in range(20, 40)] == epochs[1]  # a resumed run begins anywhere
