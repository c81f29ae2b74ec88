"""Groups of responses: engines, rewards and the experience, with stand-ins for the first two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from problem_rollouts import Rollouts
from reasoning_config import SCHEMA
from responses import Group, Response, describe
from rows import Row
from sampler import Sampler

from rlinf_async.engines import Completion, Request


def group(index: int, rewards: list[float], version: int = 1) -> Group:
    responses = [Response([5, 2], [-0.5, -0.1], [version, version + 1], reward, False) for reward in rewards]
    return Group(index, [4], responses)


class ScriptedSampler:
    """Answers each problem with the next group of a script, the first asked for last."""

    def __init__(self, script: dict[int, Group]) -> None:
        self.script = script

    async def sample(self, row: Any, index: int, count: int, oldest: int) -> Group:
        await asyncio.sleep(0.001 * (5 - index % 5))
        return self.script[index]


class ListedExperience:
    def __init__(self) -> None:
        self.indices: list[int] = []

    async def put(self, sample: Group, *, version: int, group: int) -> None:
        assert version == sample.version
        self.indices.append(group)


def rollouts(script: dict[int, Group], *overrides: str) -> tuple[Rollouts, ListedExperience]:
    cfg = SCHEMA.load("two_terms_collocated", ["data.rollout_batch_size=3", *overrides])
    experience, rows = ListedExperience(), [None] * 100
    made = Rollouts(cfg, ScriptedSampler(script), rows, experience, 0)  # type: ignore[arg-type]
    made.begin_step(version=1)
    return made, experience


async def test_a_step_has_its_problems_whatever_order_they_are_answered_in() -> None:
    filled, experience = rollouts({index: group(index, [0.0, 0.0]) for index in range(3)})
    await filled.fill()
    assert sorted(experience.indices) == [0, 1, 2]
    assert (filled.position, filled.skipped) == (3, 0)


async def test_groups_without_a_signal_are_replaced_within_bounds() -> None:
    script = {index: group(index, [0.0, 1.0 if index in (1, 4, 5) else 0.0]) for index in range(20)}
    filled, experience = rollouts(script, "algorithm.max_num_gen_batches=3")
    await filled.fill()
    assert sorted(experience.indices) == [1, 4, 5]
    assert filled.skipped == 3
    bounded, experience = rollouts(
        {index: group(index, [1.0, 1.0]) for index in range(20)}, "algorithm.max_num_gen_batches=2"
    )
    await bounded.fill()
    assert (len(experience.indices), bounded.skipped) == (3, 3)


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    found = group(0, [0.0, 1.0], version=3)
    assert (found.version, found.has_signal, group(0, [1.0, 1.0]).has_signal) == (3, True, False)
    assert describe([found], version=4) == {
        "reward": 0.5,
        "groups_without_signal": 0.0,
        "truncated": 0.0,
        "staleness": 0.5,
    }


class OneEngine:
    """Samples with version 1 until it has been asked for newer weights."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.version = 1

    async def generate(self, requests: list[Request], **sampling: Any) -> Any:
        self.requests += requests
        for index in reversed(range(len(requests))):
            reason = "length" if index == 1 else "stop"
            yield Completion(index, [4], [5, 2], [-0.5, -0.1], [self.version, 2], str(index), reason)

    async def update(self) -> None:
        self.version += 1


class OneJudge:
    def any(self, **options: Any) -> OneJudge:
        return self

    async def judge(self, prompt: Any, texts: list[str], tokens: Any, meta: Any) -> tuple[list[float], list[str]]:
        return [10.0 * int(text) for text in texts], []


def sampler(llm: OneEngine, *overrides: str) -> Sampler:
    cfg = SCHEMA.load("two_terms_collocated", overrides)
    return Sampler(cfg, llm, OneJudge(), llm.update)  # type: ignore[arg-type]


@pytest.mark.parametrize(("truncated", "rewards"), [("0.0", [0.0, 0.0, 20.0]), ("null", [0.0, 10.0, 20.0])])
async def test_a_truncated_response_has_the_reward_that_is_configured(truncated: str, rewards: list[float]) -> None:
    found = await sampler(OneEngine(), f"reward.truncated={truncated}").sample(Row("1+1="), 7, 3, oldest=1)
    assert [response.reward for response in found.responses] == rewards
    assert [response.is_truncated for response in found.responses] == [False, True, False]


async def test_responses_of_older_weights_are_sampled_anew() -> None:
    llm = OneEngine()
    found = await sampler(llm).sample(Row("1+1="), 7, 3, oldest=2)
    assert (found.version, len(llm.requests)) == (2, 6)


async def test_reproducible_responses_have_a_seed_each_and_the_same_every_time() -> None:
    one, other, greedy = OneEngine(), OneEngine(), OneEngine()
    for llm, temperature in ((one, 1.0), (other, 1.0), (greedy, 0.0)):
        await sampler(llm, "rollout.reproducible=true").sample(Row("1+1="), 7, 3, 1, temperature)
    seeds = [request.seed for request in one.requests]
    assert len(set(seeds)) == 3
    assert [request.seed for request in other.requests] == seeds
    assert [request.seed for request in greedy.requests] == [None] * 3
