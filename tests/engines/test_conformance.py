"""Claims that hold for every kind of engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio

from rlinf_async import NodePlacementStrategy
from rlinf_async.engines import Completion
from tests.engines.conformance import KINDS, PROMPT, Followed, followed
from tests.engines.tiny_model import make_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shared_cluster, pytest.mark.slow]

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def engines(request: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Followed]:
    model = str(make_model(tmp_path_factory.mktemp("model")))
    async with followed(request.param, model) as engines:
        yield engines


async def is_idle(engines: Followed) -> None:
    """Wait until no engine has an open request."""
    async with asyncio.timeout(30):
        while any(each["open_requests"] for each in await engines.llm.stats()):
            await asyncio.sleep(0.01)


async def test_greedy_tokens_and_log_probs_are_those_of_a_forward_pass(engines: Followed) -> None:
    version = await engines.update()
    tokens, log_probs = await engines.greedy(PROMPT, 30)
    completion = await engines.llm.complete(PROMPT, max_tokens=30, **GREEDY)
    assert completion.tokens == tokens
    assert completion.log_probs == pytest.approx(log_probs, abs=1e-4)
    assert completion.versions == [version] * 30
    assert completion.prompt_tokens == PROMPT


async def test_log_probs_of_samples_are_the_models_own(engines: Followed) -> None:
    options = {"max_tokens": 20, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "ignore_eos": True}
    prompts = [PROMPT, [8], [9, 10, 11, 12, 13]] * 2
    found = [each async for each in engines.llm.generate(prompts, **options)]
    for completion in found:
        [expected] = await engines.trainer.log_probs(prompts[completion.index] + completion.tokens, 20)
        assert completion.log_probs == pytest.approx(expected, abs=1e-4)
    assert len({tuple(each.tokens) for each in found}) == 6


async def test_a_new_version_samples_as_the_new_model_does(engines: Followed) -> None:
    before, _ = await engines.greedy(PROMPT, 30)
    version = await engines.update(scale=0.2)
    after, _ = await engines.greedy(PROMPT, 30)
    assert before != after
    found = [each async for each in engines.llm.generate([PROMPT] * 4, max_tokens=30, **GREEDY)]
    assert [(each.tokens, set(each.versions)) for each in found] == [(after, {version})] * 4


async def test_an_update_mixes_versions_of_one_completion_only_where_keys_are_kept(engines: Followed) -> None:
    found: list[Completion] = []

    async def ask() -> None:
        async for completion in engines.llm.generate([PROMPT] * 4, max_tokens=300, **GREEDY):
            found.append(completion)

    asking = asyncio.ensure_future(ask())
    while not any(each["open_requests"] for each in await engines.llm.stats()):
        await asyncio.sleep(0)
    version = await engines.update()
    await asking
    assert len(found) == 4
    for completion in found:
        assert completion.versions == sorted(completion.versions)
        assert set(completion.versions) <= {version - 1, version}
        assert len(set(completion.versions)) == 1 or engines.kind == "vllm"


async def test_both_engines_hold_the_trainers_weights(engines: Followed) -> None:
    [digests] = await engines.trainer.digests()
    for checksums in await engines.llm.checksums():
        assert len(checksums) > 10
        assert {name: digests[name] for name in checksums} == checksums


async def test_a_seed_gives_the_same_tokens(engines: Followed) -> None:
    options = {"max_tokens": 20, "seed": 7, "ignore_eos": True}
    first, again = [await engines.llm.complete(PROMPT, **options) for _ in range(2)]
    other = await engines.llm.complete(PROMPT, **{**options, "seed": 8})
    assert first.tokens == again.tokens != other.tokens


async def test_a_stop_text_ends_the_completion_and_is_not_part_of_its_text(engines: Followed) -> None:
    whole = await engines.llm.complete(PROMPT, max_tokens=40, **GREEDY)
    stop = whole.text[9:11]
    chunks = [each async for each in engines.llm.stream(PROMPT, max_tokens=40, stop=[stop], **GREEDY)]
    completion = Completion()
    for chunk in chunks:
        completion.add(chunk)
    assert completion.text == whole.text[: whole.text.index(stop)]
    assert completion.finish_reason == "stop"
    assert completion.tokens == whole.tokens[: len(completion.tokens)]


async def test_a_stop_token_ends_the_completion(engines: Followed) -> None:
    tokens, _ = await engines.greedy(PROMPT, 20)
    completion = await engines.llm.complete(PROMPT, max_tokens=20, stop_token_ids=[tokens[9]], **GREEDY)
    assert completion.tokens == tokens[: tokens.index(tokens[9]) + 1]
    assert completion.finish_reason == "stop"


async def test_a_completion_has_at_most_max_tokens(engines: Followed) -> None:
    completion = await engines.llm.complete("1+2=", max_tokens=3, **GREEDY)
    assert (len(completion.tokens), completion.finish_reason) == (3, "length")


async def test_messages_go_through_the_chat_template(engines: Followed) -> None:
    completion = await engines.llm.complete([{"role": "user", "content": "1+2"}], max_tokens=2, **GREEDY)
    assert completion.prompt_tokens == (await engines.llm.complete("1+2=", max_tokens=1)).prompt_tokens


async def test_a_stream_that_is_left_ends_its_request(engines: Followed) -> None:
    stream = engines.llm.stream(PROMPT, max_tokens=450, **GREEDY)
    async for chunk in stream:
        assert chunk.tokens
        break
    assert sum([each["open_requests"] for each in await engines.llm.stats()]) <= 1
    await stream.aclose()
    await is_idle(engines)


async def test_a_paused_engine_samples_nothing_until_it_is_resumed(engines: Followed) -> None:
    await engines.llm.workers.pause()
    waiting = asyncio.ensure_future(engines.llm.complete(PROMPT, max_tokens=2, **GREEDY))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await engines.llm.workers.resume()
    assert len((await waiting).tokens) == 2


async def test_unknown_sampling_parameters_are_named(engines: Followed) -> None:
    with pytest.raises(TypeError, match=r"unknown sampling parameter 'temprature' .did you mean 'temperature'"):
        await engines.llm.complete(PROMPT, temprature=1.0)
    with pytest.raises(ValueError, match="engine_options has 'min_b'"):
        await engines.llm.complete(PROMPT, engine_options={"min_b": 0.1})


async def test_a_wrong_value_of_an_engines_own_option_is_the_requests_error(engines: Followed) -> None:
    with pytest.raises(ValueError, match="min_p"):
        await engines.llm.complete(PROMPT, engine_options={"min_p": -1.0})
    assert len((await engines.llm.complete(PROMPT, max_tokens=2, ignore_eos=True)).tokens) == 2


async def test_a_prompt_longer_than_the_model_takes_is_refused(engines: Followed) -> None:
    with pytest.raises(ValueError, match=r"600.* 512|512.* 600"):
        await engines.llm.complete([5] * 600)


async def test_completions_survive_the_kill_of_their_engine(engines: Followed) -> None:
    llm = engines.llm
    expected, _ = await engines.greedy(PROMPT, 200)
    found: list[Completion] = []

    async def ask() -> None:
        async for completion in llm.generate([PROMPT] * 8, max_tokens=200, chunk_tokens=1, **GREEDY):
            found.append(completion)

    victim = llm.workers.worker_info_list[0].worker.pid
    asking = asyncio.ensure_future(ask())
    while not (await llm.stats())[0]["open_requests"]:
        pass
    os.kill(victim, signal.SIGKILL)
    await asking
    assert sorted(each.index for each in found) == list(range(8))
    assert all(each.tokens == expected for each in found)
    async with asyncio.timeout(300):
        await llm
        while len(set(await llm.versions())) > 1:  # the new engine begins with the weights of the model's path
            await asyncio.sleep(0.02)
    assert (await llm.complete(PROMPT, max_tokens=200, **GREEDY)).tokens == expected


async def test_a_wrong_path_is_an_error_that_names_it(engines: Followed, tmp_path: Any) -> None:
    group = engines.new_group(model=str(tmp_path / "none")).launch(
        engines.cluster, NodePlacementStrategy([0]), name="wrong"
    )
    with pytest.raises(Exception, match=r"model='.*/none' is no folder on this machine: save the model"):
        await group


async def test_a_closed_group_leaves_no_process(engines: Followed) -> None:
    group = await engines.new_group().launch(engines.cluster, NodePlacementStrategy([0]), name="closed")
    own = psutil.Process(group.workers.worker_info_list[0].worker.pid)
    processes = [own, *own.children(recursive=True)]
    await group.close()
    psutil.wait_procs(processes, timeout=10)
    assert not [each for each in processes if each.is_running()]
