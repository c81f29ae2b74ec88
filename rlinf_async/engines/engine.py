"""``Engine``: the interface through which a rank of an engine group uses vLLM, transformers or a server."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import importlib
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rlinf_async.configuration import did_you_mean
from rlinf_async.engines.generation import Chunk, Request
from rlinf_async.engines.token_progress import TokenProgress
from rlinf_async.errors import ConfigError

OnUpdate: TypeAlias = Literal["keep", "wait", "abort"]
ON_UPDATE: Final = ("keep", "wait", "abort")

_UNDO_S: Final = 1.0  # seconds in which an engine must resume after a cancelled pause

KINDS: Final = {
    "vllm": ("rlinf_async.engines.vllm_engine", "VllmEngine"),
    "transformers": ("rlinf_async.engines.transformers_engine", "TransformersEngine"),
    "http": ("rlinf_async.engines.http_engine", "HttpEngine"),
}


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer whose weights an engine follows.

    Attributes:
        group, rank: the worker that publishes the weights.
        name: the name under which it publishes them.
        verify: same as for ``follow``.
        timeout: seconds to wait for version 1 once the group exists, and for each later version once it is announced.
    """

    group: str
    rank: int = 0
    name: str = "policy"
    verify: str = "off"
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings common to all kinds of engines.

    Attributes:
        model: path of the model and its tokenizer, in Hugging Face's format.
        options: the engine's own options.
        trainer: the trainer to follow; None keeps the weights as loaded.
        on_update: how open requests are handled when new weights are loaded: they continue with the new weights and the
            keys and values computed with the old ones (``"keep"``), are completed first (``"wait"``), or start over
            (``"abort"``).
        stall_timeout: seconds without a token after which an engine with open requests is considered hung. Updates
            count towards this time, but the user's pauses do not. None for no limit.
    """

    model: str
    options: Mapping[str, Any]
    trainer: Trainer | None = None
    on_update: OnUpdate = "keep"
    stall_timeout: float | None = 60.0


class Engine(abc.ABC):
    """An inference engine, in the process of the rank that owns it. All coroutines run on one loop.

    The constructor starts the engine and blocks until it is ready for requests.
    """

    supported_updates: tuple[OnUpdate, ...] = ON_UPDATE

    def __init__(self, settings: EngineSettings, name: str) -> None:
        """Start the engine.

        Args:
            name: name of the rank that owns it, such as ``"llm:0"``.

        Raises:
            ConfigError: an option is unknown or out of bounds.
            RuntimeError: the engine failed to start.
        """
        self._settings = settings
        self._name = name
        self._progress = TokenProgress()
        self._pauses = 0
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._users_turn = asyncio.Lock()  # a ``resume`` must not overtake the ``pause`` before it

    async def serve(self) -> None:
        """Follow the trainer's weights until cancelled.

        Raises:
            Exception: the engine has died or hangs, or the weights do not fit it; it can serve no more requests.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run(), name=f"engine of {self._name}")
                group.create_task(self._check_progress(), name=f"progress of {self._name}")
                if self._settings.trainer is not None:
                    group.create_task(self._follow(self._settings.trainer), name=f"weights of {self._name}")
        except BaseExceptionGroup as ended:
            raise ended.exceptions[0] from None  # the other tasks were cancelled because of this error

    @abc.abstractmethod
    async def _run(self) -> None:
        """Serve requests; raise an error once the engine can no longer serve them."""

    @abc.abstractmethod
    async def _follow(self, trainer: Trainer) -> None:
        """Load the trainer's versions; once the trainer has ended, load those of its successor of the same name."""

    async def _check_progress(self) -> None:
        limit = self._settings.stall_timeout
        if limit is not None:
            await self._warm_up(limit)
            await self._progress.stalled(limit)
            raise self._stall(limit)

    async def _warm_up(self, limit_s: float) -> None:
        """Return once the first request, which may be slower than later ones, has completed."""
        return

    def _stall(self, silent_s: float) -> RuntimeError:
        return RuntimeError(
            f"{self._title()} has given no token for {silent_s:g} s (stall_timeout) to {self._progress.open} open "
            f"requests: {self._describe_parts() or 'it runs in this process'}"
        )

    @abc.abstractmethod
    def _title(self) -> str:
        """Return the name of this engine for error messages."""

    def _describe_parts(self) -> str:
        return ""

    @abc.abstractmethod
    def generate(self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()) -> AsyncIterator[Chunk]:
        """Yield chunks, the last of which has a finish reason; closing the iterator ends the request in the engine.

        Args:
            prompt: token ids of the request's prompt.
            prefix: tokens that have already been sampled; generation continues after them.

        Raises:
            ValueError: the model cannot handle this request.
        """

    # -- pauses -------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop sampling tokens; open requests are handled according to ``on_update``.

        An update and the user may both pause the engine at the same time; the last one to resume ends the pause.
        """
        async with self._users_turn:
            try:
                await self._hold()
            except asyncio.CancelledError:
                # The engine may stop all the same, and then nobody would resume it. The limit is for a hung engine,
                # which must not hold up this rank's shutdown.
                if not self._pauses:
                    with contextlib.suppress(Exception):
                        async with asyncio.timeout(_UNDO_S):
                            await self._start_sampling()
                raise
            self._progress.pause()

    async def resume(self) -> None:
        """Undo ``pause``; it does not end the pause of an update."""
        async with self._users_turn:
            if self._progress.is_paused or not self._pauses:
                await self._release()
                self._progress.resume()

    async def _hold(self) -> None:
        # Stop sampling, but keep the ``stall_timeout`` clock running: an engine that freezes during an update counts as
        # hung.
        self._pauses += 1
        self._resumed.clear()
        try:
            await self._stop_sampling()
        except BaseException:
            # No caller would resume, so end the pause here. Do not wait for the engine to resume: it may be hung, and
            # would then block this rank's shutdown. An engine that stays silent is reported as hung.
            self._end_pause()
            raise

    async def _release(self) -> None:
        if self._pauses <= 1:
            await self._start_sampling()
        self._end_pause()

    def _end_pause(self) -> None:
        self._pauses = max(0, self._pauses - 1)
        if not self._pauses:
            self._resumed.set()

    @abc.abstractmethod
    async def _stop_sampling(self) -> None: ...

    @abc.abstractmethod
    async def _start_sampling(self) -> None: ...

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """Version of the weights used for sampling; 0 before the trainer's first version."""

    @abc.abstractmethod
    async def checksums(self) -> dict[str, str]:
        """Return a dict that maps the trainer's name of each tensor to the SHA-256 of its last loaded content."""

    @abc.abstractmethod
    async def stats(self) -> dict[str, float]:
        """Return ``open_requests``, ``version``, ``updates``, and the last update's ``load_s`` and ``pause_s``."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Shut down the engine and its processes. Idempotent."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Any:
        """The model's tokenizer, an object of the transformers library."""


def engine_class(kind: str) -> type[Engine]:
    """Return the class that implements a kind of engine; this imports the engine's library.

    Raises:
        ConfigError: there is no such kind.
        ImportError: its library is not installed.
    """
    if kind not in KINDS:
        raise ConfigError(f"no engine {kind!r}{did_you_mean(kind, KINDS)}: there are {', '.join(KINDS)}")
    module, name = KINDS[kind]
    found: type[Engine] = getattr(importlib.import_module(module), name)
    return found


def check_model(path: str) -> None:
    """Check that a model's folder exists; names that are not paths are left to the engine to look up.

    Raises:
        ConfigError: the folder does not exist, or contains no model.
    """
    folder = Path(path)
    if folder.is_absolute() and not (folder / "config.json").is_file():
        there = "has no config.json" if folder.is_dir() else "is no folder on this machine"
        raise ConfigError(f"model={path!r} {there}: save the model and its tokenizer there by save_pretrained()")


def engine_seed(options: Mapping[str, Any], name: str) -> int:
    """Return the seed for one engine; engines with the same seed sample the same tokens for the same prompt.

    Args:
        options: the engine's options, whose ``seed`` is rank 0's seed; without it, the rank's own random seed is used,
            which ``launch(seed=)`` sets.
        name: name of the rank, such as ``"llm:2"``.
    """
    if options.get("seed") is not None:
        return int(options["seed"]) + int(name.rpartition(":")[2])
    import torch  # imported late, because the launching process does not need torch

    return torch.initial_seed() & 0x7FFFFFFF


def encode_prompt(tokenizer: Any, request: Request) -> list[int]:
    """Return the token ids of a request's prompt: as given, or encoded from a text or from chat messages.

    Raises:
        ValueError: the tokenizer has no chat template, the template refuses the messages, or the prompt is empty.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        tokens = list(tokenizer(prompt).input_ids)
    elif isinstance(prompt[0], Mapping):
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "the prompt is a list of messages, and the model's tokenizer has no chat template: pass a text or "
                "token ids, or set tokenizer.chat_template and save it beside the model"
            )
        variables = dict(request.chat_template_kwargs)
        if taken := variables.keys() & inspect.signature(tokenizer.apply_chat_template).parameters:
            raise ValueError(
                f"chat_template_kwargs has {', '.join(sorted(taken))}: write variables of the template only"
            )
        variables |= {"tools": list(request.tools) or None, "add_generation_prompt": True}
        try:
            found = tokenizer.apply_chat_template(list(prompt), return_dict=True, **variables)
        except Exception as error:  # it may have a type that a caller cannot unpickle
            raise ValueError(f"the model's chat template refuses the messages or tools: {error!r}") from None
        tokens = list(found["input_ids"])
    else:
        tokens = [int(token) for token in prompt]  # type: ignore[arg-type]
    if not tokens:
        raise ValueError(f"the prompt {prompt!r} has no token")
    return tokens
