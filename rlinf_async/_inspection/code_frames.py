"""Frames of this process as plain data, with the owner of their code: the user, an installed package, or neither."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import lru_cache
from types import CodeType, FrameType
from typing import Final

from rlinf_async._inspection.state.run_report import Frame
from rlinf_async._inspection.state.stack_dump import is_users

_MAX_FRAMES: Final = 60

_HELPERS: Final = frozenset(
    (
        *("rlinf_async", "rlinf_launcher"),
        *("torch", "triton", "numba", "numpy", "uvloop", "psutil"),
        *("tensorboard", "tensorboardX", "tensorflow", "wandb", "mlflow", "swanlab", "tqdm", "rich"),
        *("sentry_sdk", "prometheus_client", "opentelemetry"),
        *("debugpy", "ipykernel", "IPython", "jupyter_client", "zmq", "tornado"),
        *("_pytest", "pluggy", "xdist", "execnet"),
    )
)
"""Packages that have their own threads and tasks, which wait for work, write logs or run user code.

grpc is not included, because its thread lives as long as an open call, and its callback may set an event in user code.
"""


_PACKAGE: Final = re.compile(r"/(?:site|dist)-packages/([^/.]+)")


_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


class Code(Enum):
    """The owner of the code in a file."""

    USERS = auto()
    INSTALLED = auto()  # an installed package, which may be the user's own
    OTHERS = auto()  # the interpreter, this framework, or a package on which no wait of a run depends


@lru_cache(4096)
def code_of(file: str) -> Code:
    if is_users(file):
        return Code.USERS
    packages = _PACKAGE.findall(file)
    return Code.INSTALLED if packages and packages[-1] not in _HELPERS else Code.OTHERS


def frames_from(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def has_users(frames: Iterable[FrameType]) -> bool:
    return any(code_of(frame.f_code.co_filename) is not Code.OTHERS for frame in frames)


def stack_of(frames: Sequence[FrameType]) -> list[Frame]:
    return [
        Frame(code.co_filename, frame.f_lineno or 0, code.co_name, code_of(code.co_filename) is Code.USERS)
        for frame in frames[-_MAX_FRAMES:]
        for code in [frame.f_code]
    ]


def line_of(frames: Sequence[FrameType]) -> str | None:
    for code in (Code.USERS, Code.INSTALLED):
        for frame in reversed(frames):
            if code_of(frame.f_code.co_filename) is code:
                return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}()"
    return None


def called_by(frame: FrameType) -> str:
    """Return the name that an innermost frame calls, such as ``acquire``; ``with`` if it enters a block; or ""."""
    return _called_at(frame.f_code, frame.f_lasti)


@lru_cache(256)
def _called_at(code: CodeType, offset: int) -> str:
    instructions = [each for each in dis.get_instructions(code) if each.offset <= offset]
    if not instructions:
        return ""
    *before, current = instructions
    if current.opname == "BEFORE_WITH" or (before and before[-1].opname == "LOAD_SPECIAL"):
        return "with"
    if not current.opname.startswith(("CALL", "PRECALL")):
        return ""
    # The callee begins where the call begins, and is the longest expression that begins there: in
    # ``self.lock.acquire(timeout=limit())`` it is ``self.lock.acquire``. Only source positions show this, because the
    # value stack of another thread's frame is not accessible.
    callees = [each for each in before if each.opname.startswith(_LOADS) and _start(each) == _start(current)]
    callee = max(callees, key=_end, default=None)
    return "" if callee is None else str(callee.argval)


def _start(instruction: dis.Instruction) -> tuple[int, int]:
    where = instruction.positions
    return (where.lineno or 0, where.col_offset or 0) if where is not None else (0, 0)


def _end(instruction: dis.Instruction) -> tuple[int, int]:
    where = instruction.positions
    return (where.end_lineno or 0, where.end_col_offset or 0) if where is not None else (0, 0)
