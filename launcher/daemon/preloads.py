"""Templates that have imported modules besides torch, one for each set of modules and surroundings.

Each is forked from a plain template and imports the modules itself. A module that raises, hangs, ends its process or
cannot be inherited costs only that child: the next child skips the module, and workers import it themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlinf_async import settings
from rlinf_async._core import operations
from rlinf_async.configuration import RESTARTS
from rlinf_async.errors import LaunchError

from .fork_server import MARKER, ForkServer, control_pair, open_log
from .leftovers import Leftovers
from .process_state import private_bytes, resident_bytes

MOST_KEPT: Final = 8
"""Limit on templates of a kind per node, because a script that changes its environment would create more and more."""

MOST_REFUSED: Final = 64  # limit on remembered refusals per node, for the same reason


@dataclass(frozen=True)
class Surroundings:
    """Properties of a process that an import may depend on, equal for all workers that share a template."""

    python: str
    variables: frozenset[tuple[str, str]]
    cwd: str
    sys_path: tuple[str, ...]
    script: str | None
    module: str | None
    own_variables: frozenset[str]
    """Environment variables that differ between workers; an import that reads one is refused."""


@dataclass(frozen=True)
class PreloadRequest:
    """Modules to import, in order, before forking workers; the launch fails if a module in ``asked`` is missing."""

    node: str
    modules: tuple[str, ...]
    asked: frozenset[str]
    surroundings: Surroundings


def wanted_by(
    op: operations.Spawn,
    node: str,
    python: str,
    variables: Mapping[str, str],
    paths: Sequence[str],
    local_path: Callable[[str], str],
) -> PreloadRequest:
    """Return the modules that a launch imports on this node before the fork.

    Args:
        op: the launch.
        node: name of this node.
        python: interpreter of the workers.
        variables: environment variables that all workers share.
        paths: folders to put before the script's ``sys.path``.
        local_path: translates a path on the driver's machine into a path on this machine.
    """
    # For a single worker a template costs as much as it saves, unless the worker may be restarted.
    own = op.own_modules if len(op.workers) > 1 or op.supervised else []
    forked = any(worker.get("profiler") is None for worker in op.workers)
    modules = dict.fromkeys([*op.preload, *own]) if forked and settings.PRELOAD_TIMEOUT_S() else {}
    surroundings = Surroundings(
        python=python,
        variables=frozenset(variables.items()),
        cwd=local_path(op.cwd),
        sys_path=(*paths, *map(local_path, op.sys_path)),
        script=local_path(op.script) if op.script else None,
        module=op.module,
        own_variables=frozenset({MARKER, RESTARTS}.union(*(worker["env"] for worker in op.workers))),
    )
    return PreloadRequest(node, tuple(modules), frozenset(op.preload), surroundings)


class Refusal(NamedTuple):
    module: str
    reason: str
    is_missing: bool = False


OnRefused = Callable[[Refusal], None]


class PreloadedTemplate(ForkServer):
    """A child of a plain template that imports modules and then forks workers.

    Attributes:
        outcome: resolves to None when ready, or to the refusal.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plain: ForkServer,
        modules: tuple[str, ...],
        control: socket.socket,
        pid: int,
        log: Path | None,
        token: str,
    ) -> None:
        super().__init__(plain.python, control, pid, plain.open_files, log)
        self.modules = modules
        self.outcome: asyncio.Future[Refusal | None] = loop.create_future()
        self._importing = modules[0]
        self._leftovers = Leftovers(loop, pid, token, lambda: None)
        seconds = settings.PRELOAD_TIMEOUT_S()
        self._deadline = loop.call_later(seconds, self._too_late, seconds)
        self.watch(loop)
        with contextlib.suppress(OSError):  # the template may have ended, as its pidfd will report
            control.send(b"\0")  # the intermediate process has exited, so this daemon is now the template's parent

    def _on_report(self, facts: dict[str, Any]) -> None:
        if "importing" in facts:
            self._importing = facts["importing"]
            self.doing = f"importing {self._importing}"
        elif "refused" in facts:
            self._settle(Refusal(facts["refused"], facts["reason"], facts["is_missing"]))
        else:
            super()._on_report(facts)
            self._settle(None)

    def _settle(self, outcome: Refusal | None) -> None:
        self._deadline.cancel()
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _too_late(self, seconds: float) -> None:
        self._settle(
            Refusal(self._importing, f"its import has not ended after {seconds:g} s ($RLINF_PRELOAD_TIMEOUT_S)")
        )
        self.end()

    def _why_ended(self, how: str) -> str:
        return super()._why_ended(how) if self.facts is not None else f"during its import the process {how}"

    def _fail(self, reason: str) -> None:
        super()._fail(reason)
        self._settle(Refusal(self._importing, reason))

    def _release(self) -> None:
        # A ready template has no children except workers, which outlive it.
        (self._leftovers.end if self.facts is None else self._leftovers.release)()
        super()._release()

    def describe(self) -> str:
        if not self.outcome.done():
            return f"the worker template (pid {self.pid}) is {self.doing}"
        return super().describe()


_Key = tuple[tuple[str, ...], Surroundings]


class Preloads:
    """A node's preloaded templates, created on demand."""

    def __init__(self, next_log: Callable[[], Path | None]) -> None:
        self._next_log = next_log
        self._made: dict[_Key, PreloadedTemplate] = {}  # templates, least recently used first
        self._refused: dict[tuple[str, Surroundings], str] = {}
        self._forking = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def use(self, plain: ForkServer, wanted: PreloadRequest, on_refused: OnRefused) -> AsyncIterator[ForkServer]:
        """Context manager that yields a template with these modules, or ``plain`` if workers can inherit none of them.

        The template lives at least until the block ends.  ``on_refused`` is called once for each module that workers
        must import themselves.  Raises LaunchError if a named module does not exist, or no template could be forked.
        """
        template = await self._find(plain, wanted, on_refused)
        try:
            yield template or plain
        finally:
            if template is not None:
                self._leave(template)

    async def _find(self, plain: ForkServer, wanted: PreloadRequest, on_refused: OnRefused) -> PreloadedTemplate | None:
        place = wanted.surroundings
        # Not in the loop, which would never end if it forgot this launch's own refusals.
        for key_of_old in list(self._refused)[:-MOST_REFUSED]:
            del self._refused[key_of_old]
        while modules := tuple(each for each in wanted.modules if (each, place) not in self._refused):
            key = (modules, place)
            async with self._forking:
                template = self._made.get(key)
                is_known = template is not None and not template.dead
                if template is None or template.dead:
                    template = self._made[key] = await self._fork(plain, key)
            template.users += 1
            try:
                refusal = await asyncio.shield(template.outcome)
                # A template of this launch is not asked: files that always look changed would never let the loop end.
                changed = (
                    is_known and refusal is None and (await template.ask({"changed_files": True}))["changed_files"]
                )
                if refusal is None and not changed:
                    self._made[key] = self._made.pop(key, template)
                    template.users += 1  # count the caller as a user, too
                    return template
            finally:
                self._leave(template)
            if self._made.get(key) is template:
                self._drop(key)
            if refusal is not None and refusal.is_missing and refusal.module in wanted.asked:
                raise LaunchError(
                    f"launch(preload=...) names {refusal.module!r}, which node {wanted.node} does not have "
                    f"({refusal.reason}); sys.path of the workers: {', '.join(place.sys_path)}"
                )
            if refusal is not None and (refusal.module, place) not in self._refused:
                self._refused[refusal.module, place] = refusal.reason
                on_refused(refusal)
        return None

    async def _fork(self, plain: ForkServer, key: _Key) -> PreloadedTemplate:
        modules, place = key
        loop = asyncio.get_running_loop()
        own, other = control_pair()
        log = self._next_log()
        output = open_log(log)
        token = os.urandom(8).hex()
        order = {
            "preload": modules,
            "own_variables": sorted(place.own_variables),
            "env": {**dict(place.variables), MARKER: token},
            "token": token,
            "cwd": place.cwd,
            "sys_path": place.sys_path,
            "script": place.script,
            "module": place.module,
            "parent": os.getpid(),
        }
        try:
            pid = await plain.fork(order, [other.fileno(), *([] if output is None else [output, output])])
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
            if output is not None:
                os.close(output)
        return PreloadedTemplate(loop, plain, modules, own, pid, log, token)

    def _leave(self, template: PreloadedTemplate) -> None:
        template.users -= 1
        idle = [key for key, each in self._made.items() if not each.users]
        for key in idle[: max(0, len(self._made) - MOST_KEPT)]:
            self._drop(key)
        if not template.users and template not in self._made.values() and not template.dead:
            template.end()

    def _drop(self, key: _Key) -> None:
        template = self._made.pop(key)
        if not template.users and not template.dead:
            template.end()

    def describe(self) -> str:
        return "; ".join(filter(None, (template.describe() for template in self._made.values())))

    def status(self) -> list[dict[str, Any]]:
        ready = [template for template in self._made.values() if template.facts is not None and not template.dead]
        return [memory_of(template) | {"modules": list(template.modules)} for template in ready]

    def refusals(self) -> dict[str, str]:
        return {module: reason for (module, _), reason in self._refused.items()}

    def close(self) -> None:
        for template in self._made.values():
            template.close()
        self._made.clear()


def memory_of(template: ForkServer) -> dict[str, Any]:
    """Return a template's pid, its memory, and how much of that memory it shares with no other process."""
    return {"pid": template.pid, "memory": resident_bytes(template.pid), "private": private_bytes(template.pid)}
