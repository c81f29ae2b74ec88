"""``OpenAIServer``: offers an engine group through OpenAI's HTTP interface, and keeps its samples for training."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import hmac
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from rlinf_async._core.own_logger import own_logger
from rlinf_async.engines.generation import Chunk, Completion, Prompt, Request
from rlinf_async.engines.openai_answer import Answer
from rlinf_async.engines.tool_calls import ToolParser, parse_tool_calls
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.waiting.execution import outlast

try:
    import fastapi
    import uvicorn
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ModuleNotFoundError as error:
    raise ImportError(
        f"openai_server() needs FastAPI and uvicorn, and {error.name} is not installed here: "
        "pip install fastapi uvicorn"
    ) from error

logger = own_logger(__name__)

CONVERSATION_HEADER: Final = "x-conversation-id"
_CLOSING: Final = "the server is closing"


@dataclass(frozen=True, slots=True)
class Turn:
    """One choice of a complete response: the completion and the request that it answers.

    Attributes:
        id: id of the response, shared by all its choices.
        conversation: the request's ``x-conversation-id`` header, or else its ``user`` field; None if it has neither.
        request: prompt (text, tokens or messages) and sampling parameters.
        completion: prompt tokens, and sampled tokens with log probabilities and versions; ``index`` is the choice's
            index.
    """

    id: str
    conversation: str | None
    request: Request
    completion: Completion


class _Group(Protocol):
    # The part of ``EngineGroup`` that the server uses.

    @property
    def model(self) -> str: ...

    def stream(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> AsyncIterator[Chunk]: ...


class OpenAIServer:
    """A server for OpenAI's chat completions, completions and models over an engine group; use it with ``async with``.

    Choices have additional fields: ``token_ids``, ``prompt_token_ids``, ``log_probs`` and ``weight_versions``. In
    OpenAI's own ``logprobs`` field a token is named ``token_id:7``, because the texts of tokens are not unique.

    Attributes:
        base_url: base URL for clients, such as ``http://127.0.0.1:40001/v1``.
        token: the API key that clients must send; None lets anyone who can reach the server use it.
        uds: path of the UNIX socket; None if the server listens on an address.
        model: the model name that clients use.
        turns: turns of complete responses that have not been taken, in the order of completion.
        dropped_turns: number of turns dropped because ``turns`` was full.
    """

    def __init__(
        self,
        group: _Group,
        *,
        uds: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tool_parser: ToolParser | None = parse_tool_calls,
        keep_turns: int = 10_000,
    ) -> None:
        """Internal; use ``EngineGroup.openai_server`` to create an instance."""
        self._group = group
        self._tool_parser = tool_parser
        self._host, self._port = host, port
        self.uds = None if uds is None else os.fspath(uds)
        self.token = token
        self.model = group.model
        self.turns: collections.deque[Turn] = collections.deque(maxlen=keep_turns)
        self.dropped_turns = 0
        self._recorded = asyncio.Event()
        self._requests: set[asyncio.Queue[Any]] = set()
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None

    def __repr__(self) -> str:
        state = "not entered" if self._socket is None else self.uds or self.base_url
        return f"<OpenAIServer of {self.model}: {state}>"

    @property
    def base_url(self) -> str:
        """Base URL for clients; with a UNIX socket, the host name is arbitrary.

        Raises:
            RuntimeError: the server has not been entered.
        """
        if self._socket is None:
            raise RuntimeError(f"{self!r}: enter it by `async with`")
        if self.uds is not None:
            return "http://localhost/v1"
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    async def take(self, count: int = 1) -> list[Turn]:
        """Wait until ``count`` turns are available; remove and return the oldest ones.

        Raises:
            ValueError: the server never keeps that many turns.
        """
        assert self.turns.maxlen is not None
        if count > self.turns.maxlen:
            raise ValueError(f"take({count}): the server keeps {self.turns.maxlen} turns (keep_turns)")
        while len(self.turns) < count:
            self._recorded.clear()
            await self._recorded.wait()
        return [self.turns.popleft() for _ in range(count)]

    def take_conversation(self, conversation: str) -> list[Turn]:
        """Remove and return the turns of one conversation, oldest first."""
        taken = [turn for turn in self.turns if turn.conversation == conversation]
        kept = [turn for turn in self.turns if turn.conversation != conversation]
        self.turns.clear()
        self.turns.extend(kept)
        return taken

    def _record(self, turns: list[Turn]) -> None:
        for turn in turns:
            if self.turns and len(self.turns) == self.turns.maxlen:
                if not self.dropped_turns:
                    logger.warning(
                        "%r has %d turns that nobody has taken, and drops the oldest for each further one: take "
                        "them, or pass keep_turns=0",
                        self,
                        len(self.turns),
                    )
                self.dropped_turns += 1
            self.turns.append(turn)
        self._recorded.set()

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
        assert self._server is not None
        if not self._server.should_exit:  # another server may take the path while the last requests end
            self._forget_path()
        self._server.should_exit = True
        for events in self._requests:
            events.put_nowait(ClosedError(_CLOSING))
        try:
            await outlast(self._end(self._server))
        finally:
            self._socket.close()

    def _forget_path(self) -> None:
        if self.uds is not None:
            Path(self.uds).unlink(missing_ok=True)

    async def _end(self, server: _Server) -> None:
        assert self._task is not None
        await asyncio.wait([self._task])
        for connection in list(server.server_state.connections):  # the client does not read its response
            connection.transport.abort()
        if server.server_state.tasks:  # uvicorn has cancelled these
            await asyncio.wait(server.server_state.tasks)

    def _bind(self) -> socket.socket:
        try:
            if self.uds is not None:
                return _bind_path(self.uds)
            [family, *_] = next(iter(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)))
            return _bound(family, (self._host, self._port))
        except OSError as error:
            where = f"{self._host}:{self._port}" if self.uds is None else f"the path {self.uds!r}"
            free = "port=0 takes a free one" if self.uds is None else "pass another path, or remove that file"
            fix = f"; {free}" if error.errno == errno.EADDRINUSE else ""
            raise OSError(
                error.errno, f"the server of {self.model} cannot listen at {where}: {error.strerror or error}{fix}"
            ) from error

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
            body = await _read_body(raw)
            if body.get("model", self.model) != self.model:
                raise HTTPException(404, f"there is no model {body['model']!r} here: ask for {self.model!r}")
            answer = Answer(body, is_chat, self.model, self._tool_parser)
            conversation = raw.headers.get(CONVERSATION_HEADER) or body.get("user")
            events = self._sample(raw, answer, conversation)
            first = await anext(events)  # a rejected request raises here, while its HTTP status can still be set
            if body.get("stream"):
                return _EventStream(answer, first, events)
            async for _ in events:
                pass
            return JSONResponse(answer.whole())
        except Exception as error:
            raise _as_http(error) from error

    async def _sample(
        self, raw: fastapi.Request, answer: Answer, conversation: str | None
    ) -> AsyncIterator[tuple[int, Chunk]]:
        # Yield the chunks of all choices as they arrive. Record the turns before yielding the last chunk, because the
        # client may take them as soon as it has that chunk. End the requests when the client disconnects.
        assert self._server is not None
        if self._server.should_exit:  # the body arrived after ``__aexit__`` had ended the requests
            raise ClosedError(_CLOSING)
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
                        if answer.is_complete:
                            pairs = zip(answer.requests, answer.choices, strict=True)
                            self._record([Turn(answer.id, conversation, *pair) for pair in pairs])
                        yield index, chunk
            if not answer.is_complete:
                raise RuntimeError("an engine ended a stream before its completion")
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


def _bind_path(path: str) -> socket.socket:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        if stat.S_ISSOCK(Path(path).stat().st_mode) and asking.connect_ex(path) == errno.ECONNREFUSED:
            Path(path).unlink()  # a killed process has left this socket
    before = os.umask(0o077)  # no other user may ever connect, not even briefly
    try:
        return _bound(socket.AF_UNIX, path)
    finally:
        os.umask(before)


def _bound(family: int, address: Any) -> socket.socket:
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


async def _read_body(raw: fastapi.Request) -> dict[str, Any]:
    try:
        body = await raw.json()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body is no JSON object")
    return {name: value for name, value in body.items() if value is not None}


class _Server(uvicorn.Server):
    # A server that installs no signal handlers, because it shares its process with other code.

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


class _EventStream(StreamingResponse):
    # A stream whose requests end with it, even if it is cancelled between two events or before the first.

    def __init__(self, answer: Answer, first: tuple[int, Chunk], events: AsyncIterator[tuple[int, Chunk]]) -> None:
        super().__init__(_stream(answer, first, events), media_type="text/event-stream")
        self._events = events

    async def __call__(self, *scope: Any) -> None:
        async with contextlib.aclosing(self._events):  # type: ignore[type-var]
            await super().__call__(*scope)


async def _stream(
    answer: Answer, first: tuple[int, Chunk], events: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[str]:
    # Yield server-sent events: one per chunk of a choice, then the usage if requested, then the end mark.
    try:
        yield _event(answer.part(*first))
        async for index, chunk in events:
            yield _event(answer.part(index, chunk))
        if usage := answer.usage_part():
            yield _event(usage)
        yield "data: [DONE]\n\n"
    except Exception as error:
        yield _event(_error_body(_as_http(error)))


def _event(content: Any) -> str:
    return f"data: {json.dumps(content)}\n\n"


# -- errors -----------------------------------------------------------------------------------------------------------


def _as_http(error: Exception) -> HTTPException:
    # Return the HTTP error for a sampling error: 400 if the request is at fault, 503 if no engine is available, 500 if
    # an engine failed.
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, PeerLost | ClosedError | DeadlineExceeded):
        return HTTPException(503, str(error))
    if isinstance(error, ValueError | TypeError | ClientDisconnect):
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
