"""``rlinf-ctl debug``: shows ranks' pdb in the operator's terminal, all at one prompt."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async._inspection.state.run_report import ProcessReport
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError

from .attachment import Attachment
from .debug_dialogue import Dialogue
from .run_places import NoSuchRun
from .run_view import look

_PROMPT_WAIT_S: Final = 0.3  # seconds that ranks at the prompt wait for the others

_LEAVE: Final = frozenset(("q", "quit", "exit"))

_SILENT_AFTER_S: Final = 3.0


async def debug(attachment: Attachment, words: str) -> bool:
    """Debug the ranks of ``GROUP[:RANKS]``; return False if none was reached.  Raises NoSuchRun, also without a tty."""
    if not sys.stdin.isatty():
        raise NoSuchRun("a debugger needs a terminal, and the standard input of rlinf-ctl is none")
    chosen = (await look(attachment)).choose(words)
    if any(process.role == "driver" for process in chosen):
        raise NoSuchRun("a driver is debugged where it was started: `python -m pdb`, or F5 in an editor")
    if ended := [process for process in chosen if process.trouble.startswith("ended")]:
        raise NoSuchRun(f"{ended[0].name} cannot be debugged: it has {ended[0].trouble}")
    return await _Session(attachment, chosen).run()


class _Session:
    def __init__(self, attachment: Attachment, chosen: Sequence[ProcessReport]) -> None:
        self._attachment = attachment
        self._loop = asyncio.get_running_loop()
        self._timeout = attachment.deadline - self._loop.time()
        self._names = {process.endpoint: process.name for process in chosen}
        self._dialogue = Dialogue(self._names)
        self._news = asyncio.Event()
        self._typed = b""
        self._lines: list[str] = []
        self._has_left = self._has_prompt = self._waits_no_longer = False
        self._together: asyncio.TimerHandle | None = None
        attachment.on_event = self._on_event
        attachment.lost.add_done_callback(lambda _: self._news.set())

    async def run(self) -> bool:
        """Run until the operator leaves or all ranks have ended; return False if no rank could be debugged."""
        terminal = sys.stdin.fileno()
        self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        self._loop.add_reader(terminal, self._on_readable, terminal)
        silent = self._loop.call_later(_SILENT_AFTER_S, self._name_silent)
        try:
            await self._send("attach", "", self._names)
            while not (self._has_left or self._dialogue.is_over or self._attachment.lost.done()):
                await self._news.wait()
                self._news.clear()
                await self._go_on()
            _show(self._dialogue.take_answers())
            return self._dialogue.was_reached
        finally:
            silent.cancel()
            self._loop.remove_reader(terminal)
            self._loop.remove_signal_handler(signal.SIGINT)
            if not self._attachment.lost.done():
                await self._send("detach", "", self._dialogue.asked | self._dialogue.stopped)

    async def _go_on(self) -> None:
        dialogue = self._dialogue
        if dialogue.stopped and dialogue.asked and not self._waits_no_longer:
            if self._together is None:
                self._together = self._loop.call_later(_PROMPT_WAIT_S, self._stop_waiting)
            return
        if text := dialogue.take_answers():
            _show(("\n" if self._has_prompt else "") + text)
            self._has_prompt = False
        if not dialogue.stopped:
            return
        if not self._lines:
            if not self._has_prompt:
                _show(dialogue.prompt)
                self._has_prompt = True
            return
        line = self._lines.pop(0)
        self._has_prompt = self._waits_no_longer = False
        if line.strip() in _LEAVE:
            self._has_left = True
        else:
            await self._send("line", line, dialogue.ask())

    def _stop_waiting(self) -> None:
        self._together, self._waits_no_longer = None, True
        self._news.set()

    async def _send(self, command: str, line: str, ranks: Iterable[int]) -> None:
        self._attachment.deadline = self._loop.time() + self._timeout

        async def send(rank: int) -> None:
            operation = operations.DebugRank(frames.number_of(rank), command, line)
            try:
                await self._attachment.request(operation, frames.node_of(rank))
            except (LaunchError, DeadlineExceeded, ClosedError) as error:
                self._dialogue.on_message(rank, "refused", f"{self._names[rank]} cannot be debugged: {error}\n")
                self._news.set()

        async with asyncio.TaskGroup() as tasks:
            for rank in list(ranks):
                tasks.create_task(send(rank))

    def _on_event(self, event: str, facts: dict[str, Any]) -> None:
        if event == "debug":
            self._dialogue.on_message(facts["rank"], facts["state"], facts["text"])
        elif event == "node_lost":
            for rank in self._names:
                if frames.node_of(rank) == facts["node"]:
                    text = f"{self._names[rank]} is gone with {facts['name']}: {facts['reason']}\n"
                    self._dialogue.on_message(rank, "ended", text)
        self._news.set()

    def _on_readable(self, terminal: int) -> None:
        typed = os.read(terminal, 1 << 16)
        self._has_left |= not typed
        *lines, self._typed = (self._typed + typed).split(b"\n")
        self._lines += [line.decode(errors="replace") for line in lines]
        self._news.set()

    def _on_interrupt(self) -> None:
        if self._dialogue.stopped:
            _show(f"\nq leaves the debugger, and the ranks go on\n{self._dialogue.prompt}")
        else:
            self._has_left = True
            self._news.set()

    def _name_silent(self) -> None:
        self._dialogue.name_silent()
        self._news.set()


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
