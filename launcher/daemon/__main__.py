"""Entry point of a node daemon: starts the guardian, which forks the daemon with its worker template and event loop.

``rlinf-launch`` or ``Cluster()`` starts this program. The worker template starts before most other imports, so that
its import of torch, which is the slowest, runs in parallel with them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_async._core.own_logger import own_logger

from .guardian import PR_SET_CHILD_SUBREAPER, guard, prctl
from .sign_of_life import SignOfLife

if TYPE_CHECKING:
    from .boot import Boot
    from .templates import Templates


def daemon(data: bytes, leave_to_guardian: int, sign_of_life: SignOfLife) -> int:
    """Run the daemon until it ends; return the exit code.

    Args:
        data: the part of stdin read so far, at least the first line.
        leave_to_guardian: descriptor to which the run directory's path is written, for the guardian to remove.
        sign_of_life: timer whose expiry tells the guardian that the daemon is silent.
    """
    from rlinf_async import settings
    from rlinf_async._wire.node_config import NodeConfig
    from rlinf_async.errors import RLinfAsyncError

    from .boot import boot_of
    from .templates import Templates

    marker = None
    try:
        line, _, rest = data.partition(b"\n")
        config = NodeConfig.from_json(line)
        marker = config.marker
        boot = boot_of(config, rest)
        os.write(leave_to_guardian, os.fsencode(boot.run_dir))
        settings.adopt(config.env)
        _log_to(boot.log_dir, config.node)
    except (RLinfAsyncError, OSError, ValueError, KeyError, TypeError) as error:
        return _failed(marker, error)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    open_files = _raise_open_files()
    templates = Templates(
        sys.executable,
        boot.worker_environment,
        open_files=open_files,
        log_dir=boot.log_dir,
        flags=boot.config.python_flags,
    )
    try:
        if not boot.config.hidden:
            templates.get()
        boot.logs.prune(int(settings.KEPT_RUNS()))  # runs while the template imports torch
        _live(boot, templates, sign_of_life)
    except Exception as error:
        own_logger(__name__).exception("the daemon failed")
        while isinstance(error, ExceptionGroup):  # unwrap the task group's error
            error = error.exceptions[0]
        return _failed(marker, error)
    finally:
        templates.close()
        boot.logs.close()
    return 0


def _failed(marker: str | None, error: Exception) -> int:
    """Report an error to the launcher, or on stderr if the launcher's protocol is unknown; return the exit code."""
    text = f"{type(error).__name__}: {error}"
    if marker is None:
        sys.stderr.write(f"rlinf daemon: {text}\n")
    else:
        os.write(1, (marker + json.dumps({"event": "failed", "error": text}) + "\n").encode())
    return 1


def _raise_open_files() -> int:
    """Raise the soft limit on open files to the hard limit; return the old soft limit, which workers keep."""
    import resource

    usual, utmost = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems refuse the hard limit that they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (utmost, utmost))
    return usual


def _live(boot: Boot, templates: Templates, sign_of_life: SignOfLife) -> None:
    import asyncio

    import uvloop

    from .daemon_control import StdioControl
    from .network import GrpcNetwork
    from .node import Node
    from .resources import facts

    async def life() -> None:
        loop = asyncio.get_running_loop()
        templates.watch(loop)
        known = facts(boot.config.gpus, boot.config.fake_gpus, boot.worker_environment)
        known["gpus"] = known["gpus"][: boot.config.max_gpus]
        control = StdioControl(loop, boot.config.marker, boot.rest_of_stdin)
        node = Node(loop, boot, templates, known, control, GrpcNetwork(boot.config), sign_of_life=sign_of_life)
        gc.collect()
        gc.freeze()  # later collections skip everything allocated so far
        await node.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life())


def _log_to(log_dir: Path, node: int) -> None:
    log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = log_dir / f"daemon_{node}.log"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stderr.write("python -m rlinf_launcher.daemon takes no arguments: it is started by rlinf-launch\n")
        sys.exit(2)
    guard(daemon)
