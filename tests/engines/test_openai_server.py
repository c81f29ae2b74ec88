"""OpenAI's interface over engines of transformers, by httpx, and by OpenAI's own client where that is installed."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.engines import EngineGroup
from rlinf_async.engines.openai_server import OpenAIServer
from tests.engines.tiny_model import make_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shared_cluster]

MESSAGES = [{"role": "user", "content": "1+2"}]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineGroup]:
    model = str(make_model(tmp_path_factory.mktemp("model")))
    async with Cluster(local_nodes=1, log_to_driver=False) as cluster:
        yield await EngineGroup("transformers", model=model).launch(cluster, NodePlacementStrategy([0]), name="llm")


@pytest_asyncio.fixture(loop_scope="module")
async def api(llm: EngineGroup) -> AsyncIterator[OpenAIServer]:
    async with llm.openai_server(token="secret") as api:
        yield api


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: OpenAIServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {api.token}"}
    async with httpx.AsyncClient(base_url=api.base_url, headers=headers, timeout=60) as client:
        yield client


async def chat(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    return await client.post("/chat/completions", json={"messages": MESSAGES, **GREEDY, **options})


async def events_of(client: httpx.AsyncClient, path: str, body: Any) -> list[Any]:
    """Return the events of a stream, without its end."""
    events: list[str] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line:
                events.append(line.removeprefix("data: "))
    assert events.pop() == "[DONE]"
    return [json.loads(each) for each in events]


async def test_a_chat_is_answered_as_the_group_answers(client: httpx.AsyncClient, llm: EngineGroup) -> None:
    expected = await llm.complete(MESSAGES, **GREEDY)
    answer = (await chat(client, logprobs=True)).json()
    [choice] = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == expected.tokens
    assert choice["prompt_token_ids"] == expected.prompt_tokens
    assert choice["log_probs"] == pytest.approx(expected.log_probs, abs=1e-5)
    assert choice["weight_versions"] == [0] * 8
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == choice["log_probs"]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}


async def test_a_streams_chunks_are_the_whole_answer(client: httpx.AsyncClient) -> None:
    [whole] = (await chat(client)).json()["choices"]
    body = {"messages": MESSAGES, **GREEDY, "stream_options": {"include_usage": True}}
    *events, usage = await events_of(client, "/chat/completions", body)
    choices = [each["choices"][0] for each in events]
    assert "".join(each["delta"]["content"] for each in choices) == whole["message"]["content"]
    assert [token for each in choices for token in each["token_ids"]] == whole["token_ids"]
    assert len(choices) == 8
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [each["finish_reason"] for each in choices] == [None] * 7 + ["length"]
    assert usage["usage"]["completion_tokens"] == 8


async def test_texts_and_tokens_are_completed(client: httpx.AsyncClient, api: OpenAIServer) -> None:
    body = {"model": api.model, "prompt": ["1+2=", "a"], "n": 2, "logprobs": 1, **GREEDY}
    choices = (await client.post("/completions", json=body)).json()["choices"]
    assert [each["index"] for each in choices] == [0, 1, 2, 3]
    assert choices[0]["text"] == choices[1]["text"] != choices[2]["text"]
    assert choices[0]["logprobs"]["token_logprobs"] == choices[0]["log_probs"]
    tokens = choices[0]["prompt_token_ids"]
    again = (await client.post("/completions", json={"prompt": tokens, **GREEDY})).json()["choices"]
    assert again[0]["token_ids"] == choices[0]["token_ids"]
    events = await events_of(client, "/completions", {"prompt": tokens, **GREEDY})
    assert "".join(each["choices"][0]["text"] for each in events) == choices[0]["text"]


async def test_seeds_stop_texts_and_tools_reach_the_engine(client: httpx.AsyncClient) -> None:
    options = {"temperature": 1, "seed": 3, "n": 2}
    first, again = [(await chat(client, **options)).json()["choices"] for _ in range(2)]
    assert [each["token_ids"] for each in first] == [each["token_ids"] for each in again]
    assert first[0]["token_ids"] != first[1]["token_ids"]
    [whole] = (await chat(client)).json()["choices"]
    stop = whole["message"]["content"][3]
    [stopped] = (await chat(client, stop=stop)).json()["choices"]
    assert stopped["message"]["content"] == whole["message"]["content"].partition(stop)[0]
    assert stopped["finish_reason"] == "stop"
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    [with_tool] = (await chat(client, tools=[tool])).json()["choices"]
    assert len(with_tool["prompt_token_ids"]) > len(whole["prompt_token_ids"])


async def test_every_turn_is_kept_for_training(client: httpx.AsyncClient, api: OpenAIServer) -> None:
    first = (await chat(client, n=2, user="ann")).json()
    await client.post("/completions", json={"prompt": "a", **GREEDY}, headers={"x-conversation-id": "bob"})
    *turns, last = await api.take(3)
    assert {each.id for each in turns} == {first["id"]}
    assert sorted(each.completion.index for each in turns) == [0, 1]
    assert [each.conversation for each in turns] == ["ann", "ann"]
    assert turns[0].completion.tokens == first["choices"][0]["token_ids"]
    assert turns[0].request.prompt == MESSAGES
    assert (last.conversation, len(last.completion.log_probs)) == ("bob", 8)
    assert not api.turns


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"messages": MESSAGES, "temperature": -1}, 400, "temperature=-1 of a request"),
        ({"messages": MESSAGES, "min_b": 0.1}, 400, "engine_options has 'min_b'"),
        ({"messages": MESSAGES, "n": 0}, 400, "n=0"),
        ({"messages": []}, 400, "messages="),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "no text"),
        ({"messages": [{"role": "user", "content": "1" * 600}]}, 400, "the prompt has 601 tokens"),
        ({"messages": MESSAGES, "model": "gpt"}, 404, "there is no model 'gpt'"),
        ({"messages": MESSAGES, "top_logprobs": 5}, 400, "top_logprobs"),
        ([], 400, "no JSON object"),
    ],
)
async def test_a_wrong_request_is_an_error_in_openais_form(
    client: httpx.AsyncClient, body: Any, status: int, words: str
) -> None:
    response = await client.post("/chat/completions", json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_the_token_is_asked_for(api: OpenAIServer) -> None:
    async with httpx.AsyncClient(base_url=api.base_url) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            response = await client.get("/models", headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_other_paths_and_methods_are_errors_in_openais_form(client: httpx.AsyncClient) -> None:
    assert (await client.get("/nothing")).json()["error"]["code"] == "not_found"
    assert (await client.get("/completions")).status_code == 405


async def is_idle(llm: EngineGroup) -> None:
    async with asyncio.timeout(30):
        while any(each["open_requests"] for each in await llm.stats()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_ends_its_request(
    client: httpx.AsyncClient, llm: EngineGroup, api: OpenAIServer, stream: bool
) -> None:
    asking = asyncio.ensure_future(chat(client, max_tokens=450, stream=stream))
    async with asyncio.timeout(30):
        while not any(each["open_requests"] for each in await llm.stats()):
            await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await is_idle(llm)
    assert not api.turns


async def test_a_closed_server_ends_open_requests(llm: EngineGroup) -> None:
    async with llm.openai_server() as api, httpx.AsyncClient(base_url=api.base_url, timeout=60) as client:
        asking = asyncio.ensure_future(chat(client, max_tokens=450))
        async with asyncio.timeout(30):
            while not any(each["open_requests"] for each in await llm.stats()):
                await asyncio.sleep(0)
        await api.__aexit__()
        response = await asking
        assert (response.status_code, response.json()["error"]["type"]) == (503, "server_error")
        with pytest.raises(httpx.ConnectError):
            await client.get("/models")
    await is_idle(llm)


async def test_a_unix_socket_is_this_users_and_goes_with_the_server(llm: EngineGroup, tmp_path: Path) -> None:
    path = str(tmp_path / "api")
    async with llm.openai_server(uds=path) as api:
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(base_url=api.base_url, transport=transport) as client:
            [model] = (await client.get("/models")).json()["data"]
            assert model["id"] == api.model
    assert not os.path.exists(path)


async def test_openais_client_chats_and_streams(api: OpenAIServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: make engines has it")
    async with openai.AsyncOpenAI(base_url=api.base_url, api_key=api.token) as client:
        options = {"model": api.model, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 8}
        answer = await client.chat.completions.create(**options, logprobs=True, extra_body={"ignore_eos": True})
        [choice] = answer.choices
        assert len(choice.token_ids) == len(choice.logprobs.content) == len(choice.weight_versions) == 8
        stream = await client.chat.completions.create(**options, stream=True, extra_body={"ignore_eos": True})
        text = "".join([each.choices[0].delta.content async for each in stream])
        assert text == choice.message.content
        assert [each.id async for each in client.models.list()] == [api.model]
        with pytest.raises(openai.BadRequestError, match="temperature=-1"):
            await client.chat.completions.create(**{**options, "temperature": -1})
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            await client.chat.completions.create(**{**options, "model": "gpt"})


async def test_without_a_living_engine_the_answer_is_503(llm: EngineGroup, client: httpx.AsyncClient) -> None:
    await llm.close()
    response = await chat(client)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "server_error")
