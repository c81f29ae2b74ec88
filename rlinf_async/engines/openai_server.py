"""``OpenAIServer``: an engine group behind OpenAI's HTTP interface, which keeps what it has sampled for training."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

from rlinf_async._core.own_logger import own_logger
from rlinf_async.engines.generation import Chunk, Completion, Prompt, Request
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost

try:
    import fastapi
    import uvicorn
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.exceptions import HTTPException
except ModuleNotFoundError as error:
    raise ImportError(
        f"openai_server() needs FastAPI and uvicorn, and {error.name} is not installed here: "
        "pip install fastapi uvicorn"
    ) from error

logger = own_logger(__name__)

CONVERSATION_HEADER: Final = "x-conversation-id"
# Tokens of a chat's completion that names no limit: engines end it where the model takes no more.
_WHOLE_CONTEXT: Final = 1 << 20

_SAMPLING: Final = {field.name for field in fields(Request)} - {"prompt", "chunk_tokens", "tools", "engine_options"}
_READ_HERE: Final = {
    *("model", "messages", "prompt", "n", "stream", "stream_options", "logprobs", "tools", "user"),
    *("max_completion_tokens", "engine_options"),
}
_WITHOUT_EFFECT: Final = {
    *("metadata", "store", "service_tier", "parallel_tool_calls", "tool_choice", "top_logprobs"),
    *("prompt_cache_key", "safety_identifier"),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One choice of a response: a completion, and the request that it answers.

    Attributes:
        id: of the response, as its ``id``; choices of one response share it.
        conversation: its header ``x-conversation-id``, or its ``user``; None without both.
        request: prompt, as text, tokens or messages, and sampling parameters.
        completion: prompt tokens, sampled tokens, their log probabilities and versions; ``index`` is the choice's.
    """

    id: str
    conversation: str | None
    request: Request
    completion: Completion


class _Group(Protocol):
    # An ``EngineGroup``, as far as the server needs it.

    @property
    def model(self) -> str: ...

    def stream(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> AsyncIterator[Chunk]: ...


class OpenAIServer:
    """Chat completions, completions and models of OpenAI's interface over an engine group; enter it by ``async with``.

    Choices have further fields: ``token_ids``, ``prompt_token_ids``, ``log_probs`` and ``weight_versions``.  In
    OpenAI's own ``logprobs`` a token is named ``token_id:7``, because texts of tokens are not unique.

    Attributes:
        base_url: for a client, ``http://127.0.0.1:40001/v1``.
        token: that clients send as their API key; None: anyone who reaches the server may ask it.
        uds: path of its UNIX socket; None where it listens on an address.
        model: the name that clients ask for.
        turns: the turns of finished requests, in the order of their ends.
    """

    def __init__(self, group: _Group, *, uds: str | None, host: str, port: int, token: str | None) -> None:
        """Not for users: ``EngineGroup.openai_server`` makes one."""
        self._group = group
        self._host, self._port = host, port
        self.uds = None if uds is None else os.fspath(uds)
        self.token = token
        self.model = group.model
        self.turns: asyncio.Queue[Turn] = asyncio.Queue()
        self._requests: set[asyncio.Queue[Any]] = set()
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None

    def __repr__(self) -> str:
        state = "not entered" if self._socket is None else self.uds or self.base_url
        return f"<OpenAIServer of {self.model}: {state}>"

    @property
    def base_url(self) -> str:
        """The address for clients; with a UNIX socket, any host name does.

        Raises:
            RuntimeError: the server is not entered.
        """
        if self._socket is None:
            raise RuntimeError(f"{self!r}: enter it by `async with`")
        if self.uds is not None:
            return "http://localhost/v1"
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    async def take(self, count: int = 1) -> list[Turn]:
        """Wait for the next ``count`` turns and return them, the oldest first."""
        return [await self.turns.get() for _ in range(count)]

    async def __aenter__(self) -> OpenAIServer:
        self._socket = self._bind()
        config = uvicorn.Config(
            self._app(), log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=5
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._socket]), name=f"OpenAI's interface of {self.model}"
        )
        listening = asyncio.ensure_future(self._server.listens.wait())
        try:
            await asyncio.wait([listening, self._task], return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                raise RuntimeError(f"{self!r} did not start") from self._task.exception()
        except BaseException:
            await self.__aexit__()
            raise
        finally:
            listening.cancel()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._socket is not None
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            for events in self._requests:
                events.put_nowait(ClosedError("the server is closing"))
            await asyncio.wait([self._task])
        self._socket.close()
        self._forget_path()

    def _forget_path(self) -> None:
        if self.uds is not None:
            Path(self.uds).unlink(missing_ok=True)

    def _bind(self) -> socket.socket:
        if self.uds is not None:
            listening = socket.socket(socket.AF_UNIX)
            before = os.umask(0o077)  # no other user may connect, not even for a moment
            try:
                listening.bind(self.uds)
            finally:
                os.umask(before)
            return listening
        [family, *_] = next(iter(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)))
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._host, self._port))
        return listening

    # -- routes -------------------------------------------------------------------------------------------------

    def _app(self) -> fastapi.FastAPI:
        app = fastapi.FastAPI(title="rlinf_async", openapi_url=None)
        app.add_api_route("/v1/models", self._models, methods=["GET"], response_model=None)
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/completions", self._complete, methods=["POST"], response_model=None)
        app.add_exception_handler(HTTPException, _refuse)
        return app

    async def _models(self, raw: fastapi.Request) -> Response:
        self._check_token(raw)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "rlinf_async"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, raw: fastapi.Request) -> Response:
        return await self._answer(raw, is_chat=True)

    async def _complete(self, raw: fastapi.Request) -> Response:
        return await self._answer(raw, is_chat=False)

    async def _answer(self, raw: fastapi.Request, *, is_chat: bool) -> Response:
        self._check_token(raw)
        try:
            body = await raw.json()
        except ValueError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise HTTPException(400, "the body is no JSON object")
        if body.get("model") not in (self.model, None):
            raise HTTPException(404, f"there is no model {body['model']!r} here: ask for {self.model!r}")
        try:
            prompts = [_messages(body)] if is_chat else _prompts(body)
            requests = list(_requests(body, prompts, is_chat))
        except (ValueError, TypeError) as error:
            raise HTTPException(400, str(error)) from error
        answer = _Answer(body, is_chat, self.model, requests)
        conversation = raw.headers.get(CONVERSATION_HEADER) or body.get("user")
        events = self._sample(raw, answer, conversation)
        try:
            first = await anext(events)  # a request that is refused is known by now, and gets a status of its own
            if not body.get("stream"):
                async for _ in events:
                    pass
        except Exception as error:
            raise _as_http(error) from error
        if not body.get("stream"):
            return JSONResponse(answer.whole())
        return StreamingResponse(_stream(answer, first, events), media_type="text/event-stream")

    async def _sample(
        self, raw: fastapi.Request, answer: _Answer, conversation: str | None
    ) -> AsyncIterator[tuple[int, Chunk]]:
        # Yield chunks of all choices, as they come, and record the turns; end the requests when the client leaves.
        events: asyncio.Queue[Any] = asyncio.Queue()

        async def sample(index: int, request: Request) -> None:
            stream = self._group.stream(request, key=conversation, chunk_tokens=request.chunk_tokens)
            async with contextlib.aclosing(stream):  # type: ignore[type-var]
                async for chunk in stream:
                    events.put_nowait((index, chunk))

        async def watch() -> None:
            while (await raw.receive())["type"] != "http.disconnect":
                pass
            events.put_nowait(ClosedError("the client has gone"))

        loop = asyncio.get_running_loop()
        sampling = [loop.create_task(sample(*each)) for each in enumerate(answer.requests)]
        watching = loop.create_task(watch())
        for task in sampling:
            task.add_done_callback(events.put_nowait)
        self._requests.add(events)
        left = len(sampling)
        try:
            while left:
                match await events.get():
                    case asyncio.Task() as task:
                        task.result()
                        left -= 1
                    case Exception() as error:
                        raise error
                    case index, chunk:
                        answer.add(index, chunk)
                        if chunk.finish_reason is not None:
                            turn = Turn(answer.id, conversation, answer.requests[index], answer.choices[index])
                            self.turns.put_nowait(turn)
                        yield index, chunk
        finally:
            self._requests.discard(events)
            for task in (*sampling, watching):
                task.cancel()
            await asyncio.gather(*sampling, watching, return_exceptions=True)

    def _check_token(self, raw: fastapi.Request) -> None:
        given = raw.headers.get("authorization", "")
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise HTTPException(
                401, "the API key is missing or wrong: send the server's token as Authorization: Bearer"
            )


class _Server(uvicorn.Server):
    # A server beside other things in a process: it takes no signals.

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


class _Answer:
    # A response in the making: the choices that it has, and their forms in JSON.

    def __init__(self, body: Mapping[str, Any], is_chat: bool, model: str, requests: list[Request]) -> None:
        self.requests = requests
        self.choices = [Completion(index=index) for index in range(len(requests))]
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._is_chat = is_chat
        self._has_log_probs = body.get("logprobs") not in (None, False)
        options = body.get("stream_options") or {}
        self.tells_usage = bool(options.get("include_usage"))
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._facts = {"id": self.id, "created": int(time.time()), "model": model}

    def add(self, index: int, chunk: Chunk) -> None:
        self.choices[index].add(chunk)

    def whole(self) -> dict[str, Any]:
        choices = [
            self._choice(index, each.text, each.tokens, each.log_probs, each.versions, each.finish_reason)
            | {"prompt_token_ids": each.prompt_tokens}
            for index, each in enumerate(self.choices)
        ]
        return {**self._facts, "object": self._kind, "choices": choices, "usage": self._usage()}

    def part(self, index: int, chunk: Chunk) -> dict[str, Any]:
        choice = self._choice(
            index, chunk.text, chunk.tokens, chunk.log_probs, chunk.versions, chunk.finish_reason, is_part=True
        )
        if chunk.prompt_tokens is not None:
            choice["prompt_token_ids"] = chunk.prompt_tokens
        return {**self._facts, "object": self._kind + ".chunk" * self._is_chat, "choices": [choice]}

    def usage_part(self) -> dict[str, Any]:
        return {**self._facts, "object": self._kind + ".chunk" * self._is_chat, "choices": [], "usage": self._usage()}

    def _choice(
        self,
        index: int,
        text: str,
        tokens: list[int],
        log_probs: list[float],
        versions: list[int],
        finish: str | None,
        *,
        is_part: bool = False,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if self._is_chat:
            choice["delta" if is_part else "message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        names = [f"token_id:{token}" for token in tokens]
        if self._has_log_probs and self._is_chat:
            choice["logprobs"] = {
                "content": [
                    {"token": name, "logprob": each, "bytes": None, "top_logprobs": []}
                    for name, each in zip(names, log_probs, strict=True)
                ]
            }
        elif self._has_log_probs:
            choice["logprobs"] = {"tokens": names, "token_logprobs": log_probs, "top_logprobs": None, "text_offset": []}
        return choice | {"token_ids": tokens, "log_probs": log_probs, "weight_versions": versions}

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(each.prompt_tokens) for each in self.choices)
        sampled = sum(len(each.tokens) for each in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


async def _stream(
    answer: _Answer, first: tuple[int, Chunk], events: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[str]:
    # Yield server-sent events: a chunk of a choice each; at last the usage, where it was asked for, and an end.
    position = [0] * len(answer.choices)
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        try:
            position[first[0]] = len(first[1].tokens)
            yield _event(answer.part(*first))
            async for index, chunk in events:
                if chunk.start < position[index]:
                    raise ClosedError("the engine was lost, and its tokens cannot be taken back: ask again")
                position[index] = chunk.start + len(chunk.tokens)
                yield _event(answer.part(index, chunk))
            if answer.tells_usage:
                yield _event(answer.usage_part())
            yield "data: [DONE]\n\n"
        except Exception as error:
            yield _event(_error_body(_as_http(error)))


def _event(content: Any) -> str:
    return f"data: {json.dumps(content)}\n\n"


# -- requests ---------------------------------------------------------------------------------------------------------


def _requests(body: Mapping[str, Any], prompts: Sequence[Prompt], is_chat: bool) -> Iterator[Request]:
    # Yield a request for each choice: ``n`` of each prompt.
    given = {name: value for name, value in body.items() if value is not None}
    count = given.get("n", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"n={count!r}: write a whole number from 1 on")
    if given.get("top_logprobs"):
        raise ValueError("top_logprobs: only the sampled token has a log probability here")
    options = {name: value for name, value in given.items() if name in _SAMPLING}
    default = _WHOLE_CONTEXT if is_chat else 16
    options["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens", default))
    others = {
        name: value
        for name, value in given.items()
        if name not in _SAMPLING | _READ_HERE | _WITHOUT_EFFECT and value not in ({}, [], 0, False)
    }
    options["engine_options"] = others | given.get("engine_options", {})
    options["chunk_tokens"] = 1 if given.get("stream") else 64
    for prompt in prompts:
        for number in range(count):
            seed = None if (first := given.get("seed")) is None else first + number
            yield Request(prompt, **(options | {"seed": seed, "tools": given.get("tools", ())}))


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ValueError(f"messages={messages!r}: write a list of messages, each with role and content")
    return [each | {"content": _text_of(each.get("content"))} for each in messages]


def _text_of(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        raise ValueError("the content of a message has parts that are no text, which the engines here do not take")
    return "".join(part["text"] for part in content)


def _prompts(body: Mapping[str, Any]) -> list[Prompt]:
    prompt = body.get("prompt")
    match prompt:
        case str() | [int(), *_]:
            return [prompt]
        case [str() | [int(), *_], *_]:
            return list(prompt)
    raise ValueError(f"prompt={prompt!r}: write a text, a list of token ids, or a list of these")


# -- errors -----------------------------------------------------------------------------------------------------------


def _as_http(error: Exception) -> HTTPException:
    # Return an error of sampling with its status: 400 by the request, 503 without an engine, 500 by an engine.
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, PeerLost | ClosedError | DeadlineExceeded):
        return HTTPException(503, str(error))
    if isinstance(error, ValueError | TypeError):
        return HTTPException(400, str(error))
    logger.error("a request to OpenAI's interface has failed", exc_info=error)
    return HTTPException(500, f"{type(error).__name__}: {error}")


def _error_body(error: HTTPException) -> dict[str, Any]:
    code = {401: "invalid_api_key", 404: "not_found"}.get(error.status_code)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return {"error": {"message": error.detail, "type": kind, "param": None, "code": code}}


async def _refuse(_: fastapi.Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(_error_body(error), error.status_code)
