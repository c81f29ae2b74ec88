"""OpenAI's interface over engines of transformers, by httpx, and by OpenAI's own client where that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.engines import EngineGroup
from rlinf_async.engines.generation import Chunk, Request
from rlinf_async.engines.openai_server import OpenAIServer
from rlinf_async.errors import ClosedError
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


async def test_seeds_stop_texts_tools_and_template_reach_the_engine(client: httpx.AsyncClient) -> None:
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
    [with_end] = (await chat(client, chat_template_kwargs={"end": "abc"})).json()["choices"]
    assert len(with_end["prompt_token_ids"]) == len(whole["prompt_token_ids"]) + 3


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
        ({"messages": []}, 400, "messages="),
        ({"messages": [{"role": "user", "content": "1" * 600}]}, 400, "the prompt has 601 tokens"),
        ({"messages": MESSAGES, "model": "gpt"}, 404, "there is no model 'gpt'"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, 400, "chat template refuses the messages or tools"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"chat_template": "a"}}, 400, "has chat_template: write"),
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
        async with client.chat.completions.stream(**options, extra_body={"ignore_eos": True}) as stream:
            await stream.until_done()
            [whole] = stream.current_completion_snapshot.choices
        assert (whole.message.role, whole.message.content) == ("assistant", text)
        assert [each.id async for each in client.models.list()] == [api.model]
        with pytest.raises(openai.BadRequestError, match="temperature=-1"):
            await client.chat.completions.create(**{**options, "temperature": -1})
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            await client.chat.completions.create(**{**options, "model": "gpt"})


async def test_without_a_living_engine_the_answer_is_503(llm: EngineGroup, client: httpx.AsyncClient) -> None:
    await llm.close()
    response = await chat(client)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "server_error")


# -- without an engine -----------------------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ADD_CALL = {"name": "add", "arguments": '{"a": 1}'}
WITH_TOOLS = {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "add"}}]}


def chunks_of(text: str, finish: str | None = "stop") -> list[Chunk]:
    """Return a chunk for each character of a completion."""
    ends: list[Any] = [None] * (len(text) - 1) + [finish]
    return [
        Chunk(position, [ord(each)], [-1.0], [3], each, end, [7, 8] if position == 0 else None)
        for position, (each, end) in enumerate(zip(text, ends, strict=True))
    ]


class Script:
    """A group whose streams give what is written here, an exception at last if it is one."""

    model = "script"

    def __init__(self, *streams: list[Any]) -> None:
        self.streams = list(streams)
        self.asked: list[tuple[Request, Any]] = []

    async def stream(self, prompt: Request, *, key: Any = None, **_: Any) -> AsyncIterator[Chunk]:
        self.asked.append((prompt, key))
        for each in self.streams[(len(self.asked) - 1) % len(self.streams)]:
            if isinstance(each, Exception):
                raise each
            yield each


@contextlib.asynccontextmanager
async def scripted(*streams: list[Any], **options: Any) -> AsyncIterator[tuple[OpenAIServer, httpx.AsyncClient]]:
    async with (
        OpenAIServer(Script(*streams), **options) as api,
        httpx.AsyncClient(base_url=api.base_url, timeout=60) as client,
    ):
        yield api, client


@contextlib.asynccontextmanager
async def connected(api: OpenAIServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = api.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    yield reader, writer
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_models_calls_of_tools_are_in_its_message() -> None:
    async with scripted(chunks_of(f"I add.\n{CALL}{CALL}")) as (api, client):
        [choice] = (await client.post("/chat/completions", json=WITH_TOOLS)).json()["choices"]
        [without] = (await client.post("/chat/completions", json={"messages": MESSAGES})).json()["choices"]
        [none] = (await client.post("/chat/completions", json=WITH_TOOLS | {"tool_choice": "none"})).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I add."
    assert [each["function"] for each in choice["message"]["tool_calls"]] == [ADD_CALL] * 2
    assert len({each["id"] for each in choice["message"]["tool_calls"]}) == 2
    for other in (without, none):
        assert other["finish_reason"] == "stop"
        assert other["message"] == {"role": "assistant", "content": f"I add.\n{CALL}{CALL}"}
    assert [turn.completion.text for turn in api.turns] == [f"I add.\n{CALL}{CALL}"] * 3


async def test_a_stream_tells_text_as_it_comes_and_calls_at_its_end() -> None:
    async with scripted(chunks_of(f"I add.\n{CALL}")) as (_, client):
        choices = [each["choices"][0] for each in await events_of(client, "/chat/completions", WITH_TOOLS)]
    deltas = [each["delta"] for each in choices]
    assert [each["content"] for each in deltas] == ["I", "", " a", "d", "d", "."] + [""] * (len(deltas) - 6)
    assert [each.get("role") for each in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    [call] = deltas[-1]["tool_calls"]
    assert (call["index"], call["function"]) == (0, ADD_CALL)
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert sum(len(each["token_ids"]) for each in choices) == len(f"I add.\n{CALL}")


async def test_a_parser_of_ones_own_finds_calls_of_another_format() -> None:
    def parse(text: str) -> tuple[str, list[tuple[str, str]]]:
        content, _, name = text.partition("!")
        return content, [(name, "{}")]

    async with scripted(chunks_of("a!now"), tool_parser=parse) as (_, client):
        [choice] = (await client.post("/chat/completions", json=WITH_TOOLS)).json()["choices"]
        *events, last = [
            each["choices"][0]["delta"] for each in await events_of(client, "/chat/completions", WITH_TOOLS)
        ]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert {each["content"] for each in events} == {""}
    assert (last["content"], last["tool_calls"][0]["function"]["name"]) == ("a", "now")
    async with scripted(chunks_of("a"), tool_parser=lambda text: {}[text]) as (api, client):
        response = await client.post("/chat/completions", json=WITH_TOOLS)
        assert not api.turns
    assert response.status_code == 500
    assert "of openai_server() failed on 'a'" in response.json()["error"]["message"]


async def test_the_turns_of_a_conversation_are_taken_together() -> None:
    async with scripted(chunks_of("a")) as (api, client):
        for name in ("x", "y", "x"):
            await client.post("/completions", json={"prompt": name}, headers={"x-conversation-id": name})
        assert [turn.request.prompt for turn in api.take_conversation("x")] == ["x", "x"]
        assert [turn.request.prompt for turn in api.turns] == ["y"]
        assert api.take_conversation("x") == []
        assert [key for _, key in api._group.asked] == ["x", "y", "x"]  # type: ignore[attr-defined]


async def test_turns_that_nobody_takes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(chunks_of("a"), keep_turns=2) as (api, client):
        for name in "vwxyz":
            await client.post("/completions", json={"prompt": name})
        assert api.dropped_turns == 3
        with pytest.raises(ValueError, match="the server keeps 2 turns"):
            await api.take(3)
        assert [turn.request.prompt for turn in await api.take(2)] == ["y", "z"]
    assert [each.message for each in caplog.records].count(caplog.records[0].message) == 1
    assert "has 2 turns that nobody has taken" in caplog.text
    async with scripted(chunks_of("a"), keep_turns=0) as (api, client):
        assert (await client.post("/completions", json={"prompt": "a"})).status_code == 200
        assert (len(api.turns), api.dropped_turns) == (0, 0)


async def test_a_failed_generation_is_an_error_and_no_turn() -> None:
    cases: list[tuple[list[Any], int, str]] = [
        ([*chunks_of("ab", None), ClosedError("no engine is left")], 503, "no engine is left"),
        (chunks_of("ab", None), 500, "ended a stream before its completion"),
        ([], 500, "ended a stream before its completion"),
        ([Chunk(0, [1], [float("nan")], [3], "a", "stop", [7])], 500, "weights 3 is no finite number"),
    ]
    streams = [stream for ending, _, _ in cases for stream in (chunks_of("abc"), ending)]
    async with scripted(*streams) as (api, client):
        for _, status, words in cases:
            response = await client.post("/completions", json={"prompt": "a", "n": 2})
            assert response.status_code == status
            assert words in response.json()["error"]["message"]
        assert not api.turns


@pytest.mark.parametrize(
    "ending", [[*chunks_of("ab", None), ClosedError("no engine")], [*chunks_of("ab", None), *chunks_of("c")]]
)
async def test_a_stream_whose_engine_is_lost_ends_with_an_error_and_is_no_turn(ending: list[Any]) -> None:
    async with scripted(ending) as (api, client):
        response = await client.post("/completions", json={"prompt": "a", "stream": True})
        assert not api.turns
    *parts, last = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert [json.loads(each)["choices"][0]["text"] for each in parts] == ["a", "b"]
    error = json.loads(last)["error"]
    assert error["type"] == "server_error"
    assert "no engine" in error["message"] or "ask again" in error["message"]


async def test_a_closed_server_ends_open_streams() -> None:
    class Silent(Script):
        is_over = False

        async def stream(self, prompt: Request, *, key: Any = None, **_: Any) -> AsyncIterator[Chunk]:
            try:
                yield Chunk(0, [1], [-1.0], [3], "a", None, [7])
                await asyncio.get_running_loop().create_future()
            finally:
                self.is_over = True

    group = Silent()
    async with (
        OpenAIServer(group) as api,
        httpx.AsyncClient(base_url=api.base_url, timeout=60) as client,
        client.stream("POST", "/completions", json={"prompt": "a", "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        assert json.loads((await anext(lines)).removeprefix("data: "))["choices"][0]["text"] == "a"
        await api.__aexit__()
        assert "the server is closing" in "".join([line async for line in lines])
    assert group.is_over


async def test_a_closing_server_refuses_requests_that_come_late() -> None:
    async with OpenAIServer(Script(chunks_of("a"))) as api, connected(api) as (reader, writer):
        assert api._server is not None
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{")
        while not api._server.server_state.tasks:
            await asyncio.sleep(0)
        leaving = asyncio.ensure_future(api.__aexit__())
        await asyncio.sleep(0)
        writer.write(b'"prompt":"a"}')
        assert b"503" in await reader.readline()
        assert b"the server is closing" in await reader.read()
        await leaving
    assert not api._group.asked  # type: ignore[attr-defined]


async def test_a_closed_server_ends_the_request_of_a_client_that_reads_nothing() -> None:
    class Flood(Script):
        is_over = False

        async def stream(self, prompt: Request, *, key: Any = None, **_: Any) -> AsyncIterator[Chunk]:
            try:
                for position in range(200):
                    yield Chunk(position, [1], [-1.0], [3], "a" * 100_000, None, [7])
                await asyncio.get_running_loop().create_future()
            finally:
                self.is_over = True

    group = Flood()
    async with OpenAIServer(group) as api, connected(api) as (_, writer):
        assert api._server is not None
        api._server.config.timeout_graceful_shutdown = 0
        body = b'{"prompt":"a","stream":true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 28\r\n\r\n" + body)
        while not any(each.flow.write_paused for each in api._server.server_state.connections):
            await asyncio.sleep(0)
        await api.__aexit__()
        assert group.is_over
        assert not api._server.server_state.tasks


async def test_a_server_that_ends_leaves_the_path_to_the_next(tmp_path: Path) -> None:
    path = str(tmp_path / "api")
    api = await OpenAIServer(Script(), uds=path).__aenter__()
    leaving = asyncio.ensure_future(api.__aexit__())
    await asyncio.sleep(0)
    async with OpenAIServer(Script(), uds=path):
        await leaving
        await api.__aexit__()
        assert Path(path).is_socket()


async def test_a_prompts_tokens_count_once_in_the_usage() -> None:
    async with scripted(chunks_of("abc")) as (_, client):
        answer = (await client.post("/completions", json={"prompt": ["a", "b"], "n": 3})).json()
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 18, "total_tokens": 22}


async def test_a_body_that_is_no_json_object_is_named() -> None:
    async with scripted(chunks_of("a")) as (_, client):
        for body in (b"{", b"\xff", b"[" * 10**6, b"5"):
            response = await client.post("/completions", content=body)
            assert response.status_code == 400
            assert "the body is no JSON" in response.json()["error"]["message"]


async def test_a_client_that_leaves_amid_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(chunks_of("a")) as (api, _), connected(api) as (_, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_servers_of_one_group_have_turns_of_their_own() -> None:
    async with scripted(chunks_of("a")) as (api, client), OpenAIServer(api._group) as other:
        assert other.base_url != api.base_url
        await client.post("/completions", json={"prompt": "a"})
        assert (len(api.turns), len(other.turns)) == (1, 0)


async def test_an_address_in_use_is_named() -> None:
    async with OpenAIServer(Script()) as api:
        port = int(api.base_url.split(":")[2].removesuffix("/v1"))
        with pytest.raises(OSError, match=rf"cannot listen at 127.0.0.1:{port}: .*port=0 takes a free one"):
            await OpenAIServer(Script(), port=port).__aenter__()
    with pytest.raises(OSError, match=r"cannot listen at 192.0.2.1:0: "):
        await OpenAIServer(Script(), host="192.0.2.1").__aenter__()


async def test_a_path_that_is_in_use_stays_and_one_that_was_left_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "api"
    path.write_text("mine")
    with pytest.raises(OSError, match=f"cannot listen at the path '{path}': .*remove that file"):
        await OpenAIServer(Script(), uds=str(path)).__aenter__()
    assert path.read_text() == "mine"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with OpenAIServer(Script(), uds=str(path)):
        with pytest.raises(OSError, match="pass another path"):
            await OpenAIServer(Script(), uds=str(path)).__aenter__()
        assert path.is_socket()
    with pytest.raises(OSError, match=r"cannot listen at the path .*/nowhere/api': No such file"):
        await OpenAIServer(Script(), uds=str(tmp_path / "nowhere/api")).__aenter__()


async def test_a_cancelled_exit_still_closes_the_server(tmp_path: Path) -> None:
    path = tmp_path / "api"
    api = await OpenAIServer(Script(), uds=str(path)).__aenter__()
    leaving = asyncio.ensure_future(api.__aexit__())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert api._task is not None
    assert api._task.done()
    assert not path.exists()
