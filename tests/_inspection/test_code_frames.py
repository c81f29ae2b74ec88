"""Whose code a frame runs, and what it is calling, are told by files and positions alone."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

import pytest
import torch

from rlinf_async import work
from rlinf_async._inspection.code_frames import Code, called_by, code_of, frames_from, line_of, stack_of


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (__file__, Code.USERS),
        ("<stdin>", Code.USERS),
        ("/home/me/.venv/lib/python3.11/site-packages/mylab/train.py", Code.INSTALLED),
        ("/usr/lib/python3/dist-packages/mylab.py", Code.INSTALLED),
        ("/home/me/.venv/lib/python3.11/site-packages/tqdm/_monitor.py", Code.OTHERS),
        ("/home/me/.venv/lib/python3.11/site-packages/rlinf_async/work.py", Code.OTHERS),
        ("/home/me/.venv/lib/python3.11/site-packages/rlinf_launcher/daemon/__main__.py", Code.OTHERS),
        (str(torch.__file__), Code.OTHERS),
        (str(threading.__file__), Code.OTHERS),
        (str(asyncio.__file__), Code.OTHERS),
        (str(work.__file__), Code.OTHERS),
        ("<frozen runpy>", Code.OTHERS),
    ],
)
def test_a_file_is_the_users_or_a_packages_or_of_no_interest(file: str, code: Code) -> None:
    assert code_of(file) is code


class Called:
    """Notes what its caller is calling."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def acquire(self, *args: Any) -> Called:
        frame = sys._getframe(1)
        self.seen.append(called_by(frame))
        return self

    __call__ = __enter__ = acquire

    def __exit__(self, *exc_info: object) -> None:
        pass

    def __len__(self) -> int:
        return len(self.acquire().seen)


def test_what_is_called_has_the_name_of_the_attribute_or_variable() -> None:
    called = Called()
    holder = [called]
    called.acquire()
    called.acquire(called.acquire(len("x")), called)
    holder[0].acquire().acquire()
    (holder[0]
        .acquire(
            1))  # fmt: skip
    called()
    with called:
        pass
    assert called.seen == [*["acquire"] * 6, "called", "with"]


def test_the_line_is_the_users_innermost_and_the_stack_has_all() -> None:
    found: list[FrameType] = []

    def inner() -> None:
        found.extend(frames_from(sys._getframe(0)))

    list(map(lambda _: inner(), [0]))  # noqa: C417
    assert line_of(found) == f"{__file__}:{found[-1].f_lineno} in {inner.__qualname__}()"
    stack = stack_of(found)
    assert stack[-1].function == "inner"
    assert stack[-1].users
    assert not all(frame.users for frame in stack)
    assert line_of([frame for frame in found if frame.f_code.co_filename == threading.__file__]) is None
