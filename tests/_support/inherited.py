"""Process state that a program inherits and no shell can set: ignored and blocked signals, system calls that fail.

``python inherited.py ignore CHLD,PIPE -- command ...``; ``block`` takes signals too, ``deny`` takes ``CALL=ERRNO``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from typing import Final

_CALLS: Final = {
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "memfd_create": {"x86_64": 319, "aarch64": 279}.get(platform.machine(), -1),
}

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_LOAD_NUMBER: Final = (0x20, 0, 0, 0)
_ALLOW: Final = (0x06, 0, 0, 0x7FFF0000)


def deny(call: str, error: str) -> None:
    """Has a system call fail in this process and its descendants, as old kernels and containers do."""
    refuse = (0x06, 0, 0, 0x00050000 | getattr(errno, error))
    program = [_LOAD_NUMBER, (0x15, 0, 1, _CALLS[call]), refuse, _ALLOW]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    fprog = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, fprog, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def main(kind: str, what: str, separator: str, *command: str) -> None:
    assert separator == "--", sys.argv
    signals = [] if kind == "deny" else [signal.Signals[f"SIG{name}"] for name in what.split(",")]
    if kind == "ignore":
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
    elif kind == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    else:
        for denied in what.split(","):
            deny(*denied.split("="))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
