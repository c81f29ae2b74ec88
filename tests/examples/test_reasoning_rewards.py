"""The reward worker: deadlines, errors, and functions of texts and of tokens."""

from __future__ import annotations

import asyncio
import sys
import time
from types import ModuleType
from typing import Any

import pytest
from reasoning_config import SCHEMA
from reward_worker import Judge, RewardFailed, load_function

from rlinf_async.errors import ConfigError

META = {"numbers": [2, 3, 7], "target": 13}


class Slow:
    def __del__(self) -> None:
        time.sleep(0.3)


def hangs_after_a_drop(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    Slow()
    return hangs(prompt, text, meta)


def hangs(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    while True:
        try:
            time.sleep(10)
        except Exception:
            pass


async def waits(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    await asyncio.sleep(10)
    return 1.0


def raises(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    raise KeyError("difficulty")


def gives_nan(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    return float("nan")


def counts_tokens(prompt: Any, tokens: list[int], meta: dict[str, Any]) -> float:
    return float(len(tokens))


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("test_reward_functions")
    for function in (hangs, hangs_after_a_drop, waits, raises, gives_nan, counts_tokens):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


async def judge(*overrides: str) -> tuple[list[float], list[str]]:
    cfg = SCHEMA.load("countdown_disaggregated", ["reward.deadline_s=0.2", *overrides])
    judge = Judge(cfg.reward, cfg.reward.function or "countdown.reward")
    return await judge.rewards("2,3,7=13:", ["2*3+7", "13"], [[1, 2, 3], [4]], META)


async def test_the_tasks_own_function_judges_unless_another_is_named() -> None:
    assert await judge() == ([1.0, 0.0], [])
    assert await judge("reward.function=test_reward_functions.counts_tokens") == ([3.0, 1.0], [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hangs", r"took longer than reward\.deadline_s \(0\.2 s\)"),
        ("hangs_after_a_drop", r"took longer than reward\.deadline_s \(0\.2 s\)"),
        ("waits", r"took longer than reward\.deadline_s \(0\.2 s\)"),
        ("raises", r"raised KeyError\('difficulty'\)"),
        ("gives_nan", "returned nan"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_reward_that_fails_is_an_error_or_counted_as_configured(name: str, words: str) -> None:
    with pytest.raises(
        RewardFailed, match=rf"test_reward_functions\.{name} {words} .*response '2\*3\+7' to '2,3,7=13:'"
    ):
        await judge(f"reward.function=test_reward_functions.{name}")
    counted = ("reward.on_error=count", "reward.error_reward=-1")
    rewards, errors = await judge(f"reward.function=test_reward_functions.{name}", *counted)
    assert rewards == [-1.0, -1.0]
    assert len(errors) == 2


@pytest.mark.parametrize("path", ["nowhere.reward", "countdown.rewards", "reward"])
def test_a_function_that_is_not_there_is_named_with_its_key(path: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.function: "):
        load_function(path)
