"""``EngineGroup``: inference engines as one group of workers, which any request may go to."""

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
# Requests that one engine may have at once: what a scheduler of vLLM's takes into its batch by default.
_IN_FLIGHT: Final = 256


class EngineGroup:
    """Engines that sample from a language model, one for each rank of a worker group.

    A request goes to the live engine with the fewest open ones.  When an engine dies or hangs, its requests go on at
    another, each once, behind the tokens that it had sampled.

    Example:
        llm = await EngineGroup("vllm", model=path, max_model_len=2048).launch(
            cluster, placement, name="llm", follow="trainer", restart="rank"
        )
        async for completion in llm.generate(prompts, max_tokens=256, temperature=1.0):
            print(completion.index, completion.text, completion.versions)

    Args:
        kind: ``"vllm"``, ``"transformers"``, or ``"http"``, vLLM's own server.
        model: path of the model and its tokenizer, in the format of Hugging Face.
        options: of the engine's own: those of vLLM's ``AsyncEngineArgs``, of its server's command line, or of
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
        """Start one engine per rank; ``await`` it until all are ready.

        Args:
            cluster, placement, name: as those of ``GroupSpec.launch``.
            follow: the group, or (group, rank), that publishes the weights.  Engines begin with the weights of the
                model's path, version 0, and load version 1 as soon as it is there.
            weights: the name that they are published under.
            on_update: what becomes of open requests when a version is loaded: ``"keep"``, ``"wait"`` or ``"abort"``;
                see ``EngineSettings``.  None: ``"keep"`` with vLLM, ``"wait"`` with the other kinds.
            verify: ``"sha256"``: each version's digests are compared with the trainer's.
            stall_timeout: seconds without a token after which an engine with open requests counts as hung.
            in_flight: requests that one engine has at once; others wait in the caller.
            weights_timeout: seconds to wait for version 1 and for announced versions.
            launch_options: others of ``GroupSpec.launch``, such as ``restart="rank"``, ``env=`` or ``preload=``.

        Raises:
            ConfigError: ``on_update`` is none of the three.
            RuntimeError: this group was launched before.
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
        """The model's path."""
        return self._model

    @property
    def workers(self) -> WorkerGroup[EngineWorker]:
        """The group of workers.

        Raises:
            RuntimeError: it was not launched.
        """
        if self._group is None:
            raise RuntimeError(f"{self!r}: call launch(cluster, ...) first")
        return self._group

    def __await__(self) -> Generator[Any, Any, EngineGroup]:
        """Wait until all engines are ready.

        Raises:
            Exception: an engine did not start; the text has its last words.
        """
        yield from self.workers.__await__()
        return self

    def wait_ready(self, timeout: float | None = None) -> EngineGroup:
        """Block until all engines are ready, as ``await`` waits in a coroutine."""
        self.workers.wait_ready(timeout)
        return self

    async def __aenter__(self) -> EngineGroup:
        await self.workers.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.workers.__aexit__(*exc_info)

    def close(self) -> Any:
        """End the engines, as ``WorkerGroup.close``."""
        return self.workers.close()

    # -- generation ---------------------------------------------------------------------------------------------

    def _pool(self, key: Hashable) -> AnyRank:
        stall = None if self._stall_timeout is None else 2 * self._stall_timeout
        # A rank whose engine hangs tells so itself, after stall_timeout; twice that is for one that is stopped itself.
        return self.workers.any(in_flight=self._in_flight, key=key, stall_timeout=stall)

    async def stream(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> AsyncIterator[Chunk]:
        """Yield the tokens of one completion as they are sampled.

        Args:
            prompt: a ``Request``, or its prompt.
            key: of a conversation: its requests go to one engine as long as that lives, which has their prefix cached.
            sampling: attributes of ``Request``.

        Raises:
            TypeError: there is no such sampling parameter.
            ValueError: a value is out of its bounds, or the model cannot take the request.
            WorkerDied, DeadlineExceeded: the engine was lost, and so was the one after it.
        """
        request = Request.of(prompt, {"chunk_tokens": 1} | sampling)
        stream = self._pool(key).stream(request)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()

    async def complete(self, prompt: Request | Prompt, *, key: Hashable = None, **sampling: Any) -> Completion:
        """Return one completion; arguments and errors as those of ``stream``."""
        completion = Completion()
        async for chunk in self._pool(key).stream(Request.of(prompt, sampling)):
            completion.add(chunk)
        if completion.finish_reason is None:
            raise RuntimeError(f"an engine of {self!r} ended a stream before its completion: {completion!r}")
        return completion

    async def generate(
        self, prompts: Iterable[Request | Prompt], *, key: Hashable = None, **sampling: Any
    ) -> AsyncIterator[Completion]:
        """Yield the completions of many prompts, each as soon as it is there; ``index`` says whose it is.

        A loop that is left early ends the requests that are still open.  Arguments and errors as those of ``stream``;
        the first error ends all.
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
        """Return a server of OpenAI's HTTP interface over these engines, which any agent can ask.

        Example:
            async with llm.openai_server(token="secret") as api:
                headers = {"x-conversation-id": "episode 7"}
                client = openai.AsyncOpenAI(base_url=api.base_url, api_key=api.token, default_headers=headers)
                ...
                for turn in api.take_conversation("episode 7"):
                    print(turn.completion.prompt_tokens, turn.completion.tokens, turn.completion.versions)

        Args:
            uds: path of a UNIX socket, which only this user can reach; the server makes and removes it.
            host, port: address, where ``uds`` is None; port 0: a free one.
            token: that clients send as their API key.  None: without, for a socket or machine that others cannot reach.
            tool_parser: finds the model's calls of tools in the text of a completion, where a request has ``tools``:
                returns the text without them, and the calls, as names and arguments in JSON.  The default reads
                ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, the format of Hermes and Qwen.  None:
                calls remain text.
            keep_turns: turns that the server keeps until they are taken; the oldest are dropped for further ones.

        Raises:
            ImportError: FastAPI or uvicorn is not installed.
        """
        from rlinf_async.engines.openai_server import OpenAIServer

        return OpenAIServer(
            self, uds=uds, host=host, port=port, token=token, tool_parser=tool_parser, keep_turns=keep_turns
        )

    # -- facts --------------------------------------------------------------------------------------------------

    async def versions(self) -> list[int]:
        """Return the version of the weights of each engine, by rank."""
        return list(await self.workers.call(EngineWorker.version))

    async def checksums(self) -> list[dict[str, str]]:
        """Return the SHA-256 of each tensor that was loaded last, by rank; needs ``verify="sha256"``."""
        return list(await self.workers.call(EngineWorker.checksums))

    async def stats(self) -> list[dict[str, float]]:
        """Return figures of each engine, by rank; see ``Engine.stats``."""
        return list(await self.workers.call(EngineWorker.stats))
