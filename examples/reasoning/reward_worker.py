"""Worker group ``reward``: calls a reward function for each response, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from reasoning_config import Configuration
from rows import Prompt

from rlinf_async import Worker, idempotent
from rlinf_async.errors import ConfigError


class RewardFailed(RuntimeError):
    """A reward function raised, hung, or returned no number."""


@dataclass
class Verdicts:
    """Rewards of a problem's responses, and what went wrong with those that count as ``reward.error_reward``."""

    rewards: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class RewardWorker(Worker):
    """Judges responses by ``reward.function``."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg.reward
        self._path = cfg.reward.function or f"{cfg.data.task}.reward"
        self._function = load_function(self._path)
        self._wants_tokens = list(inspect.signature(self._function).parameters)[1:2] == ["tokens"]

    @idempotent
    async def judge(
        self, prompt: Prompt, texts: Sequence[str], tokens: Sequence[Sequence[int]], meta: dict[str, Any]
    ) -> Verdicts:
        """Return the rewards of responses to one problem.

        Raises:
            RewardFailed: the function raised, hung or returned no number, and ``reward.on_error`` is ``raise``.
        """
        verdicts = Verdicts()
        for response in tokens if self._wants_tokens else texts:
            try:
                verdicts.rewards.append(await self._call(prompt, response, meta))
            except RewardFailed as failure:
                if self._cfg.on_error == "raise":
                    raise
                verdicts.rewards.append(self._cfg.error_reward)
                verdicts.errors.append(str(failure))
        return verdicts

    async def _call(self, prompt: Prompt, response: Any, meta: dict[str, Any]) -> float:
        deadline_s = self._cfg.deadline_s
        try:
            if inspect.iscoroutinefunction(self._function):
                async with asyncio.timeout(deadline_s):
                    found = await self._function(prompt, response, meta)
            else:
                with _interrupted_after(deadline_s):
                    found = self._function(prompt, response, meta)
            reward = float(found)
        except (_DeadlineOver, TimeoutError) as error:
            words = f"took longer than reward.deadline_s ({deadline_s:g} s)" if not str(error) else repr(error)
        except Exception as error:
            words = f"raised {error!r}"
        else:
            if math.isfinite(reward):
                return reward
            words = f"returned {reward}"
        raise RewardFailed(
            f"{self._path} {words} for response {response!r:.200} to {prompt!r:.200} with meta {meta!r:.200}: mend it, "
            "or write reward.on_error=count"
        )


def load_function(path: str) -> Callable[..., Any]:
    """Return the function of a dotted path, ``package.module.function``.

    Raises:
        ConfigError: there is no such module or function.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"reward.function: {path!r} cannot be loaded ({error}): write module.function, of a module on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ConfigError(f"reward.function: {path!r} is a {type(found).__name__}: name a function")
    return found  # type: ignore[no-any-return]


class _DeadlineOver(BaseException):
    # No Exception: a function's own ``except Exception`` must not keep it.
    pass


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    # Interrupts Python code and blocking system calls.  Code in C that never returns to Python keeps the rank busy,
    # which the caller notices by its ``stall_timeout``.
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _DeadlineOver

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
