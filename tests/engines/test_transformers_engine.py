"""``TransformersEngine`` beyond what every engine does: trainers that come and go, texts, options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.engines import EngineGroup, Request
from rlinf_async.engines.transformers_engine import _settled
from tests.engines.engine_trainers import NoiseTrainer
from tests.engines.tiny_model import make_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shared_cluster, pytest.mark.slow]

PROMPT = [5, 6, 7]
ONE = NodePlacementStrategy([0])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model")))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(local_nodes=1, log_to_driver=False) as cluster:
        yield cluster


async def test_an_engine_outlives_its_trainer_and_follows_the_next(cluster: Cluster, model: str) -> None:
    async def versions_of(trainer: Any, scale: float) -> tuple[list[int], set[int]]:
        await trainer.update(scale)
        await trainer.delivered()
        [[tokens, _]] = await trainer.greedy(PROMPT, 20)
        completion = await llm.complete(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
        assert completion.tokens == tokens
        return tokens, set(completion.versions)

    llm = await EngineGroup("transformers", model=model).launch(cluster, ONE, name="llm", follow="trainer")
    assert (await llm.complete(PROMPT, max_tokens=1)).versions == [0]
    trainer = NoiseTrainer.create_group(model).launch(cluster, ONE, name="trainer", seed=1)
    first, versions = await versions_of(trainer, 0.2)
    assert versions == {1}
    await trainer.close()
    alone = await llm.complete(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
    assert (alone.tokens, set(alone.versions)) == (first, {1})
    trainer = NoiseTrainer.create_group(model).launch(cluster, ONE, name="trainer", seed=2)
    second, _ = await versions_of(trainer, 0.2)
    assert second != first
    await trainer.close()
    await llm.close()


async def test_options_are_checked_before_the_first_request(cluster: Cluster, model: str) -> None:
    followed = {"follow": "trainer", "on_update": "keep"}
    for name, options, launch, words in (
        ("a", {"batch_size": 0}, {}, "batch_size=0 of EngineGroup"),
        ("b", {"no_such_option": 1}, {}, "refuses an option: .*no_such_option"),
        ("c", {}, followed, "on_update='keep' is not possible with .*: write 'wait'"),
    ):
        group = EngineGroup("transformers", model=model, **options).launch(cluster, ONE, name=name, **launch)
        with pytest.raises(Exception, match=words):
            await group


async def test_requests_with_other_parameters_are_not_kept_waiting_for_ever(cluster: Cluster, model: str) -> None:
    async with EngineGroup("transformers", model=model, batch_size=2).launch(cluster, ONE, name="small") as llm:
        requests = [Request(PROMPT, max_tokens=5, temperature=each % 3, ignore_eos=True) for each in range(9)]
        async with asyncio.timeout(60):
            found = [each.index async for each in llm.generate(requests)]
        assert sorted(found) == list(range(9))


async def test_no_text_is_told_that_a_stop_text_or_the_next_token_may_change() -> None:
    assert _settled("abcdef", Request("a")) == 6
    assert _settled("abcdef", Request("a", stop=("xyz", "x"))) == 4
    assert _settled("abc\ufffd", Request("a")) == 3
    assert _settled("a", Request("a", stop=("xyz",))) == 0
