"""``Engine``: what a rank of an engine group asks of vLLM, of transformers or of a server."""

from __future__ import annotations

import abc
import asyncio
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

KINDS: Final = {
    "vllm": ("rlinf_async.engines.vllm_engine", "VllmEngine"),
    "transformers": ("rlinf_async.engines.transformers_engine", "TransformersEngine"),
    "http": ("rlinf_async.engines.http_engine", "HttpEngine"),
}


@dataclass(frozen=True, slots=True)
class Trainer:
    """Whose weights an engine follows.

    Attributes:
        group, rank: of the worker that publishes them.
        name: the name that it publishes them under.
        verify: as that of ``follow``.
        timeout: seconds to wait for version 1, once the group is there, and for each later version that was announced.
    """

    group: str
    rank: int = 0
    name: str = "policy"
    verify: str = "off"
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine of any kind.

    Attributes:
        model: path of the model and its tokenizer, in the format of Hugging Face.
        options: of the engine's own.
        trainer: None: the weights stay as they were loaded.
        on_update: what becomes of open requests when weights are loaded: they go on with the new weights and the keys
            and values of the old ones (``"keep"``), are completed first (``"wait"``), or begin anew (``"abort"``).
        stall_timeout: seconds without a token, while requests are open and none is paused, after which the engine
            counts as hung; None for no limit.
    """

    model: str
    options: Mapping[str, Any]
    trainer: Trainer | None = None
    on_update: OnUpdate = "keep"
    stall_timeout: float | None = 60.0


class Engine(abc.ABC):
    """One inference engine, in the process of the rank that owns it.  All coroutines run on one loop.

    The constructor starts the engine and blocks until it is ready for requests.
    """

    supported_updates: tuple[OnUpdate, ...] = ON_UPDATE

    def __init__(self, settings: EngineSettings, name: str) -> None:
        """Start the engine.

        Args:
            name: of the rank that owns it, ``"llm:0"``.

        Raises:
            ConfigError: an option is unknown or out of its bounds.
            RuntimeError: the engine did not start.
        """
        self._settings = settings
        self._name = name
        self._progress = TokenProgress()
        self._pauses = 0
        self._resumed = asyncio.Event()
        self._resumed.set()

    async def serve(self) -> None:
        """Follow the trainer's weights until cancelled.

        Raises:
            Exception: the engine died or hangs, or weights do not fit it: it serves no more.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run(), name=f"engine of {self._name}")
                group.create_task(self._check_progress(), name=f"progress of {self._name}")
                if self._settings.trainer is not None:
                    group.create_task(self._follow(self._settings.trainer), name=f"weights of {self._name}")
        except BaseExceptionGroup as ended:
            raise ended.exceptions[0] from None  # the others were cancelled for it

    @abc.abstractmethod
    async def _run(self) -> None:
        """Serve requests; raises an error once the engine cannot any more."""

    @abc.abstractmethod
    async def _follow(self, trainer: Trainer) -> None:
        """Load the trainer's versions, and those of the next trainer of that name once this one has ended."""

    async def _check_progress(self) -> None:
        limit = self._settings.stall_timeout
        if limit is not None:
            await self._warm_up(limit)
            await self._progress.stalled(limit)
            raise self._stall(limit)

    async def _warm_up(self, limit_s: float) -> None:
        """Return once the first request, which may be slower than others, is over."""
        return

    def _stall(self, silent_s: float) -> RuntimeError:
        return RuntimeError(
            f"{self._title()} has given no token for {silent_s:g} s (stall_timeout) to {self._progress.open} open "
            f"requests: {self._describe_parts() or 'it runs in this process'}"
        )

    @abc.abstractmethod
    def _title(self) -> str:
        """Return the name of this engine for errors."""

    def _describe_parts(self) -> str:
        return ""

    @abc.abstractmethod
    def generate(self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()) -> AsyncIterator[Chunk]:
        """Yield chunks, the last of which has a finish reason; closing the iterator ends the request in the engine.

        Args:
            prompt: token ids of the request's prompt.
            prefix: tokens that were sampled already: generation continues behind them.

        Raises:
            ValueError: the model cannot take this request.
        """

    # -- pauses -------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Sample no more tokens; open requests fare as ``on_update`` says.

        An update and the user may pause at once: the last of them to resume ends the pause.
        """
        self._pauses += 1
        self._resumed.clear()
        self._progress.pause()
        try:
            await self._stop_sampling()
        except BaseException:
            # Nobody would resume.  An engine that is silent all the same counts as hung: to ask a hung one here would
            # block the end of this rank.
            self._end_pause()
            raise

    async def resume(self) -> None:
        """Undo ``pause``."""
        if self._pauses <= 1:
            await self._start_sampling()
        self._end_pause()

    def _end_pause(self) -> None:
        self._pauses = max(0, self._pauses - 1)
        if not self._pauses:
            self._progress.resume()
            self._resumed.set()

    @abc.abstractmethod
    async def _stop_sampling(self) -> None: ...

    @abc.abstractmethod
    async def _start_sampling(self) -> None: ...

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """Version of the weights that tokens are sampled with; 0 before the first of the trainer's."""

    @abc.abstractmethod
    async def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each tensor of the weights that were loaded last, by the trainer's name for it."""

    @abc.abstractmethod
    async def stats(self) -> dict[str, float]:
        """Return ``open_requests``, ``version``, ``updates``, ``load_s`` and ``pause_s`` of the last update."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the engine and its processes. Idempotent."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Any:
        """The model's tokenizer, of transformers."""


def engine_class(kind: str) -> type[Engine]:
    """Return the implementation of a kind of engine, which imports its library.

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
    """Check that the folder of a model is there; other names are the engine's to look up.

    Raises:
        ConfigError: it is not, or holds no model.
    """
    folder = Path(path)
    if folder.is_absolute() and not (folder / "config.json").is_file():
        there = "has no config.json" if folder.is_dir() else "is no folder on this machine"
        raise ConfigError(f"model={path!r} {there}: save the model and its tokenizer there by save_pretrained()")


def engine_seed(options: Mapping[str, Any], name: str) -> int:
    """Return the seed of one engine: engines with the same seed sample the same tokens for the same prompt.

    Args:
        options: ``seed`` is that of rank 0; without it, the rank's own random seed, which ``launch(seed=)`` sets.
        name: of the rank, ``"llm:2"``.
    """
    if options.get("seed") is not None:
        return int(options["seed"]) + int(name.rpartition(":")[2])
    import torch  # imported late: the launching process needs no torch

    return torch.initial_seed() & 0x7FFFFFFF


def encode_prompt(tokenizer: Any, request: Request) -> list[int]:
    """Return the token ids of a request's prompt: as given, of a text, or of messages in the model's chat template.

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
        except Exception as error:  # of the template's own kinds, which a caller may be unable to unpickle
            raise ValueError(f"the model's chat template refuses the messages or tools: {error!r}") from None
        tokens = list(found["input_ids"])
    else:
        tokens = [int(token) for token in prompt]  # type: ignore[arg-type]
    if not tokens:
        raise ValueError(f"the prompt {prompt!r} has no token")
    return tokens
