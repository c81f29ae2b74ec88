"""A process that has imported torch, and forks others, each of which would import it for two seconds.

``python -m tests._support.fork_server FD MODULE …`` imports the modules, then takes orders from a socket (see
``tests/weights/children.py``): a module to run as a program, its arguments and environment, and three descriptors: its
standard input and output, one for word of it, and one that it inherits.  Over the second go its pid, ``stopped`` each
time that it has been, and its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the overseers
    while True:
        order, files, _, _ = socket.recv_fds(control, 1 << 18, 3)
        if not order:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            fork_and_oversee(json.loads(order), *files)
            return
        for file in files:
            os.close(file)


def fork_and_oversee(order: dict[str, Any], standard: int, word: int, inherited: int) -> None:
    """Returns in the new process alone, when its module has ended, to end as every interpreter does."""
    if pid := os.fork():
        os.close(standard)
        os.close(inherited)
        oversee(pid, word)
    os.close(word)
    for number in (0, 1):
        os.dup2(standard, number)
    os.close(standard)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv[1:] = [str(inherited), *order["arguments"]]
    sys.modules.pop(order["module"], None)  # imported above, and now to be run
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def oversee(pid: int, word: int) -> None:
    """Does not return."""
    with contextlib.suppress(BrokenPipeError):
        os.write(word, f"{pid}\n".encode())
        while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
            os.write(word, b"stopped\n")
        os.write(word, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
