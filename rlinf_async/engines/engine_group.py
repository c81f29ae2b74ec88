"""``EngineGroup``: a group of workers that run inference engines, any of which may serve a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.any_rank import AnyRank
from rlinf_async.engines.engine import KINDS, ON_UPDATE, EngineSettings, OnUpdate, Trainer
from rlinf_async.engines.engine_worker import EngineWorker
from rlinf_async.engines.generation import Chunk, Completion, Prompt, Request
from rlinf_async.engines.tool_calls import ToolParser, parse_tool_calls
from rlinf_async.errors import ConfigError
from rlinf_async.group import WorkerGroup

if TYPE_CHECKING:
    from rlinf_async.engines.openai_server import OpenAIServer

_PRELOADS: Final = {"vllm": ("vllm",), "transformers": ("transformers",), "http": ()}
# Maximum number of concurrent requests per engine: the default batch size of vLLM's scheduler.
_IN_FLIGHT: Final = 256


class EngineGroup:
    """Engines that sample from a language model, one for each rank of a worker group.

    A request goes to the live engine with the fewest open requests. When an engine dies or hangs, another engine
    continues its requests, each at most once, after the tokens that have already been sampled.

    Example:
        llm = await EngineGroup("vllm", model=path, max_model_len=2048).launch(
            cluster, placement, name="llm", follow="trainer", restart="rank"
        )
        async for completion in llm.generate(prompts, max_tokens=256, temperature=1.0):
            print(completion.index, completion.text, completion.versions)

    Args:
        kind: ``"vllm"``, ``"transformers"``, or ``"http"`` for vLLM's own server.
        model: path of the model and its tokenizer, in Hugging Face's format.
        options: the engine's own options, as for vLLM's ``AsyncEngineArgs``, its server's command line, or
            transformers' ``from_pretrained``.

    Raises:
        ConfigError: there is no such kind.
    """

    def __init__(self, kind: str, *, model: str, **options: Any) -> None:
        if kind not in KINDS:
            raise ConfigError(f"no engine {kind!r}: there are {', '.join(KINDS)}")
        self._kind = kind
        self._model = str(model)
        self._options = options
        self._group: WorkerGroup[EngineWorker] | None = None
        self._in_flight = _IN_FLIGHT
        self._stall_timeout: float | None = None

    def __repr__(self) -> str:
        state = "not launched" if self._group is None else repr(self._group)
        return f"<EngineGroup of {self._kind}, model {self._model}: {state}>"

    def launch(
        self,
        cluster: Any,
        placement: Any = None,
        *,
        name: str = "llm",
        follow: str | tuple[str, int] | None = None,
        weights: str = "policy",
        on_update: OnUpdate | None = None,
        verify: str = "off",
        stall_timeout: float | None = 60.0,
        in_flight: int = _IN_FLIGHT,
        weights_timeout: float = 600.0,
        **launch_options: Any,
    ) -> EngineGroup:
        """Start one engine per rank; ``await`` the group until all engines are ready.

        Args:
            cluster, placement, name: same as for ``GroupSpec.launch``.
            follow: the group, or (group, rank), that publishes the weights. Engines start with the weights from the
                model's path, version 0, and load version 1 as soon as it is available.
            weights: the name under which the weights are published.
            on_update: how open requests are handled when a version is loaded: ``"keep"``, ``"wait"`` or ``"abort"``;
                see ``EngineSettings``. None means ``"keep"`` with vLLM, and ``"wait"`` with the other kinds.
            verify: ``"sha256"`` compares each version's digests with the trainer's.
            stall_timeout: seconds without a token after which an engine with open requests is considered hung, even
                during an update.
            in_flight: maximum number of concurrent requests per engine; further requests wait in the caller.
            weights_timeout: seconds to wait for version 1, and for each announced version.
            launch_options: further options of ``GroupSpec.launch``, such as ``restart="rank"``, ``env=`` or
                ``preload=``.

        Raises:
            ConfigError: ``on_update`` is not one of the three values.
            RuntimeError: this group has already been launched.
        """
        if self._group is not None:
            raise RuntimeError(f"{self!r} was launched before: make another EngineGroup")
        if on_update is None:
            on_update = "keep" if self._kind == "vllm" else "wait"
        if on_update not in ON_UPDATE:
            raise ConfigError(f"on_update={on_update!r}: write one of {', '.join(map(repr, ON_UPDATE))}")
        trainer = None
        if follow is not None:
            group, rank = (follow, 0) if isinstance(follow, str) else follow
            trainer = Trainer(group, rank, weights, verify, weights_timeout)
        settings = EngineSettings(self._model, self._options, trainer, on_update, stall_timeout)
        launch_options.setdefault("preload", _PRELOADS[self._kind])
        self._in_flight, self._stall_timeout = in_flight, stall_timeout
        spec = EngineWorker.create_group(self._kind, settings)
        self._group = spec.launch(cluster, placement, name, **launch_options)
        return self

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """Path of the model."""
        return self._model

    @property
    def workers(self) -> WorkerGroup[EngineWorker]:
        """The worker group that runs the engines.

        Raises:
            RuntimeError: the group has not been launched.
        """
        if self._group is None:
            raise RuntimeError(f"{self!r}: call launch(cluster, ...) first")
        return self._group

    def __await__(self) -> Generator[Any, Any, EngineGroup]:
        """Wait until all engines are ready.

        Raises:
            Exception: an engine failed to start; the error's text contains its last output.
        """
        yield from self.workers.__await__()
        return self

    def wait_ready(self, timeout: float | None = None) -> EngineGroup:
        """Block until all engines are ready; a coroutine uses ``await`` instead."""
        self.workers.wait_ready(timeout)
        return self

    async def __aenter__(self) -> EngineGroup:
        await self.workers.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.workers.__aexit__(*exc_info)

    def close(self) -> Any:
        """Shut down the engines, as ``WorkerGroup.close`` does."""
        return self.workers.close()

    # -- generation ---------------------------------------------------------------------------------------------

    def _pool(self, key: Hashable) -> AnyRank:
        stall = None if self._stall_timeout is None else 2 * self._stall_timeout
        # A rank whose engine hangs reports it after stall_timeout. Wait twice as long for a rank that may itself be
        # frozen.
        return self.workers.any(in_flight=self._in_flight, key=key, stall_timeout=stall)

    async def stream(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> AsyncIterator[Chunk]:
        """Yield the tokens of one completion as they are sampled.

        Args:
            prompt: a ``Request``, or its prompt.
            key: key of a conversation, whose requests all go to one engine while it is alive, because it has cached
                their prefix.
            sampling: attributes of ``Request`` by name.

        Raises:
            TypeError: there is no such sampling parameter.
            ValueError: a value is out of bounds, or the model cannot handle the request.
            WorkerDied, DeadlineExceeded: the engine was lost, and so was the engine that took over.
        """
        request = Request.of(prompt, {"chunk_tokens": 1} | sampling)
        stream = self._pool(key).stream(request)
        try:
            async for chunk in stream:
                if chunk.tokens or chunk.finish_reason is not None:  # others only show that the rank is alive
                    yield chunk
        finally:
            await stream.aclose()

    async def complete(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> Completion:
        """Return one completion; takes the same arguments and raises the same errors as ``stream``."""
        completion = Completion()
        async for chunk in self._pool(key).stream(Request.of(prompt, sampling)):
            completion.add(chunk)
        if completion.finish_reason is None:
            raise RuntimeError(f"an engine of {self!r} ended a stream before its completion: {completion!r}")
        return completion

    async def generate(
        self, prompts: Iterable[Request | Prompt], *, key: Hashable = None, **sampling: Any
    ) -> AsyncIterator[Completion]:
        """Yield the completions of many prompts as they finish; ``index`` identifies the prompt.

        Leaving the loop early ends the open requests. Arguments and errors are the same as for ``stream``; the first
        error ends all requests.
        """
        requests = [Request.of(prompt, sampling) for prompt in prompts]
        finished: asyncio.Queue[asyncio.Task[Completion]] = asyncio.Queue()
        tasks: dict[asyncio.Task[Completion], int] = {}
        try:
            for index, request in enumerate(requests):
                task = asyncio.get_running_loop().create_task(self.complete(request, key=key))
                tasks[task] = index
                task.add_done_callback(finished.put_nowait)
            for _ in requests:
                task = await finished.get()
                completion = task.result()
                completion.index = tasks[task]
                yield completion
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def openai_server(
        self,
        *,
        uds: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tool_parser: ToolParser | None = parse_tool_calls,
        keep_turns: int = 10_000,
    ) -> OpenAIServer:
        """Return a server that offers these engines to any agent through OpenAI's HTTP interface.

        Example:
            async with llm.openai_server(token="secret") as api:
                headers = {"x-conversation-id": "episode 7"}
                client = openai.AsyncOpenAI(base_url=api.base_url, api_key=api.token, default_headers=headers)
                ...
                for turn in api.take_conversation("episode 7"):
                    print(turn.completion.prompt_tokens, turn.completion.tokens, turn.completion.versions)

        Args:
            uds: path of a UNIX socket that only this user can reach; the server creates and removes it.
            host, port: address to listen on if ``uds`` is None; port 0 chooses a free port.
            token: the API key that clients must send; None for no key, on a socket or machine that others cannot reach.
            tool_parser: finds the model's tool calls in a completion's text if the request has ``tools``. Returns the
                text without the calls, and the calls as names and JSON arguments. The default reads
                ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, the format of Hermes and Qwen. None leaves
                calls in the text.
            keep_turns: maximum number of turns that the server keeps until they are taken; beyond it, the oldest are
                dropped.

        Raises:
            ImportError: FastAPI or uvicorn is not installed.
        """
        from rlinf_async.engines.openai_server import OpenAIServer

        return OpenAIServer(
            self, uds=uds, host=host, port=port, token=token, tool_parser=tool_parser, keep_turns=keep_turns
        )

    # -- facts --------------------------------------------------------------------------------------------------

    async def versions(self) -> list[int]:
        """Return each engine's version of the weights, in rank order."""
        return list(await self.workers.call(EngineWorker.version))

    async def checksums(self) -> list[dict[str, str]]:
        """Return each engine's ``Engine.checksums``, in rank order; requires ``verify="sha256"``."""
        return list(await self.workers.call(EngineWorker.checksums))

    async def stats(self) -> list[dict[str, float]]:
        """Return each engine's statistics, in rank order; see ``Engine.stats``."""
        return list(await self.workers.call(EngineWorker.stats))
