"""``EngineWorker``: a rank of an engine group, which owns an engine and exits with it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from rlinf_async._core import operations
from rlinf_async._group.idempotent import idempotent
from rlinf_async._worker import context
from rlinf_async.engines.engine import EngineSettings, check_model, encode_prompt, engine_class
from rlinf_async.engines.generation import Chunk, Completion, Request
from rlinf_async.errors import ConfigError
from rlinf_async.weights.waiting.execution import outlast
from rlinf_async.worker import Worker


class EngineWorker(Worker):
    """A worker that starts its engine in the constructor, so that a group is ready once all its engines are.

    When the engine dies or hangs, this rank exits with the reason as its verdict; ``restart="rank"`` restarts both.
    """

    def __init__(self, kind: str, settings: EngineSettings) -> None:
        super().__init__()
        implementation = engine_class(kind)
        if settings.trainer is not None and settings.on_update not in implementation.supported_updates:
            raise ConfigError(
                f"on_update={settings.on_update!r} is not possible with EngineGroup({kind!r}): write "
                + " or ".join(map(repr, implementation.supported_updates))
            )
        check_model(settings.model)
        self._settings = settings
        try:
            self._engine = implementation(settings, self._worker_name)
        except RuntimeError as error:
            # The engine's error only says that one of its processes has ended; that process wrote the cause to stderr.
            request = context.require_client().request(operations.ReadStderr(), what="what the engine wrote to stderr")
            lines = [f"    | {line}" for line in request.wait()]
            raise RuntimeError("\n".join([str(error), "  last words", *lines])) from error
        # A full collection would visit every object of the engine's libraries; with vLLM, it would delay tokens by 0.3
        # s.
        gc.collect()
        gc.freeze()
        self.background(self._engine.serve())

    @idempotent
    async def stream(self, request: Request, *, resume: Sequence[Chunk] = ()) -> AsyncIterator[Chunk]:
        """Yield the chunks of one completion.

        Args:
            resume: chunks that another rank sampled before it was lost. Generation continues after them, unless all
                tokens must come from one version (``on_update="wait"`` or ``"abort"``) and the chunks come from another
                version.

        Raises:
            ValueError: the model cannot handle this request.
        """
        so_far = Completion()
        for chunk in resume:
            so_far.add(chunk)
        if so_far.finish_reason is not None:  # only the stream's end was lost
            return
        waiting: Chunk | None = None
        end = len(so_far.tokens)
        sampled = self._sample(request, so_far)
        async with contextlib.aclosing(_with_signs(sampled, self._settings.stall_timeout)) as signs:
            async for came in signs:
                # vLLM yields the first token immediately, and a message for it alone would cost as much as a message
                # for all the others.
                if came is not None:
                    waiting = (waiting and waiting.extended(came)) or came
                    if waiting.finish_reason is None and len(waiting.tokens) < request.chunk_tokens:
                        continue
                waiting = waiting or Chunk(end, [], [], [])
                end = waiting.start + len(waiting.tokens)
                yield waiting
                waiting = None

    async def _sample(self, request: Request, so_far: Completion) -> AsyncIterator[Chunk]:
        prompt = encode_prompt(self._engine.tokenizer, request)
        is_mixed = any(version != self._engine.version for version in so_far.versions)
        prefix = [] if is_mixed and self._settings.on_update != "keep" else so_far.tokens
        # The engine compares the version of this moment with later ones, so begin before the loop's next step.
        chunks = self._engine.generate(request, prompt, prefix)
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    async def tokenize(self, request: Request) -> list[int]:
        """Return the token ids of the request's prompt."""
        return encode_prompt(self._engine.tokenizer, request)

    async def pause(self) -> None:
        """Stop sampling tokens until ``resume`` is called."""
        await self._engine.pause()

    async def resume(self) -> None:
        """Start sampling tokens again."""
        await self._engine.resume()

    async def version(self) -> int:
        """Return the version of the trainer's weights used for sampling; 0 before the first version."""
        return self._engine.version

    async def checksums(self) -> dict[str, str]:
        """Return a dict that maps the trainer's name of each tensor to the SHA-256 of its last loaded content."""
        trainer = self._settings.trainer
        if trainer is None or trainer.verify != "sha256":
            raise ValueError("checksums() of an engine needs launch(follow=..., verify='sha256')")
        return await self._engine.checksums()

    async def stats(self) -> dict[str, float]:
        """Return the engine's statistics; see ``Engine.stats``."""
        return await self._engine.stats()

    async def settings(self) -> dict[str, object]:
        """Return the settings with which the engine was created."""
        return dataclasses.asdict(self._settings)

    async def on_close(self) -> None:
        await self._engine.close()


async def _with_signs(chunks: AsyncIterator[Chunk], every_s: float | None) -> AsyncGenerator[Chunk | None, None]:
    # Yield the chunks, and None every ``every_s`` seconds. Callers consider a rank that sends nothing for twice this
    # time frozen, but an engine may be silent for longer: while the user pauses it, or while vLLM compiles.
    came: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    async def sample() -> None:
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                came.put_nowait(chunk)

    def sign(after_s: float) -> None:
        nonlocal timer
        came.put_nowait(None)
        timer = loop.call_later(after_s, sign, after_s)

    if every_s is not None:
        timer = loop.call_later(every_s, sign, every_s)
    sampling = loop.create_task(sample())
    sampling.add_done_callback(came.put_nowait)
    try:
        while (chunk := await came.get()) is not sampling:
            yield chunk
        sampling.result()
    finally:
        if timer is not None:
            timer.cancel()
        sampling.cancel()
        await outlast(asyncio.gather(sampling, return_exceptions=True))
