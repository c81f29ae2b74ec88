"""The daemon's side of worker templates: processes that import torch and fork workers on request.

There is one template per interpreter and environment; its program is ``rlinf_async._worker.template``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async.errors import LaunchError

from .fork_server import MARKER, NO_TOKEN, ForkServer, control_pair, open_log
from .preloads import MOST_KEPT, OnRefused, PreloadRequest, Preloads, memory_of

_EXEC_TIME_VARIABLES: Final = re.compile("|".join(map(fnmatch.translate, (
    "LD_*", "PYTHON*", "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "GLIBC_TUNABLES",
    "TORCH_*", "PYTORCH_*",
))))  # fmt: skip
"""Environment variables that programs read at startup, so that setting them after a fork has no effect."""

_HOME: Final = str(Path(settings.__file__).parents[1])


def exec_time(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that require a separate template."""
    return {name: value for name, value in environment.items() if _EXEC_TIME_VARIABLES.match(name)}


def template_command(flags: Sequence[str]) -> list[str]:
    """Return the template's command line after the interpreter, without the template's own arguments.

    ``-I`` and ``-E`` hide PYTHONPATH, which may have led the daemon to this package, so the command adds its folder.
    """
    if {"-I", "-E"}.isdisjoint(flags):
        return [*flags, "-P", "-m", "rlinf_async._worker.template"]
    start = f"import sys; sys.path.append({_HOME!r}); from rlinf_async._worker.template import main; main()"
    return [*flags, "-P", "-c", start]


class Template(ForkServer):
    """A process that imports torch immediately, while the daemon continues; ``fork`` waits for the import."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        open_files: int,
        log: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """``log`` receives the process's output (default: this process's stdout); ``flags`` are interpreter options."""
        own, other = control_pair()
        output = open_log(log)
        try:
            process = subprocess.Popen(
                [python, *template_command(flags), str(other.fileno()), str(os.getpid())],
                env={**environment, "OPENBLAS_NUM_THREADS": "1", MARKER: NO_TOKEN},
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            own.close()
            raise LaunchError(f"the worker template could not be started with {python}: {error}") from error
        finally:
            other.close()
            if output is not None:
                os.close(output)
        process.returncode = 0  # the pidfd's owner reaps the process, so Popen must not wait for it
        super().__init__(python, own, process.pid, open_files, log)

    def _on_report(self, facts: dict[str, Any]) -> None:
        super()._on_report(facts)
        if facts.get("protocol") != frames.PROTOCOL:
            self._fail(
                f"the rlinf_async of {self.python} speaks protocol {facts.get('protocol')}, and this node's "
                f"{frames.PROTOCOL}: both must be the same version"
            )
            self._kill()

    def _why_ended(self, how: str) -> str:
        text = super()._why_ended(how)
        if self.facts is None and self.python != sys.executable:
            text += f"\n  fix: {self.python} needs torch and this version of rlinf_async, as this node's own has them"
        return text


class Templates:
    """A node's templates, created on demand."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        *,
        open_files: int,
        log_dir: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.python = python
        self.flags = flags
        self._log_dir = log_dir
        self._made = 0
        self.open_files = open_files
        self._environment = dict(environment)
        self._templates: dict[tuple[str, frozenset[tuple[str, str]]], Template] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preloads = Preloads(self.next_log)

    def __repr__(self) -> str:
        return f"<Templates [{len(self._templates)} processes]>"

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for template in self._templates.values():
            template.watch(loop)

    def get(self, environment: Mapping[str, str] | None = None, python: str | None = None) -> Template:
        """Return the template for workers with these variables, by default the node's own variables."""
        special = exec_time(self._environment if environment is None else environment)
        key = (python or self.python, frozenset(special.items()))
        template = self._templates.get(key)
        if template is None or template.dead:
            log = self.next_log()
            other = {name: value for name, value in self._environment.items() if name not in exec_time({name: value})}
            template = Template(key[0], {**other, **special}, self.open_files, log, self.flags)
            try:
                if self._loop is not None:
                    template.watch(self._loop)
            except BaseException:
                template.close()
                raise
        self._templates.pop(key, None)
        self._templates[key] = template  # the most recently used is last
        return template

    @contextlib.asynccontextmanager
    async def preloaded(
        self, plain: Template, wanted: PreloadRequest, on_refused: OnRefused
    ) -> AsyncIterator[ForkServer]:
        """Context manager for a template that has imported these modules; see ``Preloads.use``."""
        plain.users += 1
        try:
            async with self._preloads.use(plain, wanted, on_refused) as template:
                yield template
        finally:
            plain.users -= 1
            idle = [key for key, each in self._templates.items() if not each.users]
            for key in idle[: max(0, len(self._templates) - MOST_KEPT)]:
                self._templates.pop(key).end()

    def next_log(self) -> Path | None:
        self._made += 1
        # The pid distinguishes several nodes on one machine.
        return None if self._log_dir is None else self._log_dir / f"template_{os.getpid()}_{self._made - 1}.log"

    def describe(self) -> str:
        plain = (template.describe() for template in self._templates.values())
        return "; ".join(filter(None, (*plain, self._preloads.describe())))

    def status(self) -> dict[str, Any]:
        alive = [memory_of(template) for template in self._templates.values() if not template.dead]
        templates = [*(each | {"modules": []} for each in alive), *self._preloads.status()]
        return {"templates": templates, "not_preloaded": self._preloads.refusals()}

    def close(self) -> None:
        self._preloads.close()
        for template in self._templates.values():
            template.close()
        self._templates.clear()
