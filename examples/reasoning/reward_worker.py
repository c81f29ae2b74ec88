"""Worker group ``reward``: calls a reward function for each response, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from reasoning_config import Reward
from rows import Prompt

from rlinf_async import Worker, idempotent
from rlinf_async.errors import ConfigError


class RewardFailed(RuntimeError):
    """A reward function raised, hung, or returned no number."""


class RewardWorker(Worker):
    """Judges responses in a process of its own."""

    def __init__(self, cfg: Reward, function: str) -> None:
        super().__init__()
        self._judge = Judge(cfg, function)

    @idempotent
    async def judge(self, *problem: Any) -> tuple[list[float], list[str]]:
        """Judge responses as ``Judge.rewards``."""
        return await self._judge.rewards(*problem)


class Judge:
    """A reward function at a dotted path: of prompt, text or ``tokens``, and meta; sync or async."""

    def __init__(self, cfg: Reward, path: str) -> None:
        self._cfg, self._path, self._function = cfg, path, load_function(path)
        self._wants_tokens = list(inspect.signature(self._function).parameters)[1:2] == ["tokens"]

    async def rewards(
        self, prompt: Prompt, texts: Sequence[str], tokens: Sequence[Sequence[int]], meta: dict[str, Any]
    ) -> tuple[list[float], list[str]]:
        """Return the rewards of responses to one problem, and the errors that count as ``reward.error_reward``.

        Raises:
            RewardFailed: the function failed, and ``reward.on_error`` is ``raise``.
        """
        rewards, errors = list[float](), list[str]()
        for response in tokens if self._wants_tokens else texts:
            try:
                rewards.append(await self._call(prompt, response, meta))
            except RewardFailed as failure:
                if self._cfg.on_error == "raise":
                    raise
                rewards.append(self._cfg.error_reward)
                errors.append(str(failure))
        return rewards, errors

    async def _call(self, prompt: Prompt, response: Any, meta: dict[str, Any]) -> float:
        try:
            if inspect.iscoroutinefunction(self._function):
                async with asyncio.timeout(self._cfg.deadline_s):
                    found = await self._function(prompt, response, meta)
            else:
                with _interrupted_after(self._cfg.deadline_s):
                    found = self._function(prompt, response, meta)
            if math.isfinite(found):
                return float(found)
            words = f"returned {found}"
        except (_DeadlineOver, TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm in the last moment may have prevented this
            words = f"took longer than reward.deadline_s ({self._cfg.deadline_s:g} s)"
        except Exception as error:
            words = f"raised {error!r}"
        raise RewardFailed(
            f"{self._path} {words} for response {response!r:.200} to {prompt!r:.200} with meta {meta!r:.200}: mend it, "
            "or write reward.on_error=count"
        )


def load_function(path: str) -> Callable[..., Any]:
    """Return the function of a dotted path, ``package.module.function``; ConfigError if there is none."""
    module, _, name = path.rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        fix = "write module.function, of a module on PYTHONPATH"
        raise ConfigError(f"reward.function: {path!r} cannot be loaded ({error}): {fix}") from error
    return found


class _DeadlineOver(BaseException):
    # No Exception: a function's own ``except Exception`` must not keep it.
    pass


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    # Interrupts Python code and blocking system calls.  Code in C that never returns to Python keeps the rank busy,
    # which the caller notices by its ``stall_timeout``.
    def interrupt(*_: object) -> None:
        raise _DeadlineOver

    before = signal.signal(signal.SIGALRM, interrupt)
    # Again a second later, because Python ignores what is raised in a ``__del__``.
    signal.setitimer(signal.ITIMER_REAL, seconds, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
