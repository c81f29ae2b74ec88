"""``Dialogue``: tracks open questions and answers while an operator debugs several ranks at one prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlinf_async._core.printable import printable
from rlinf_async._core.root_cause import fold_ranks

OVER = frozenset(("ended", "refused"))  # states after which a rank sends nothing more


class Dialogue:
    """State of each rank, by endpoint: asked (running, or about to answer a line), stopped at the prompt, or over.

    ``names`` maps ranks to names, such as ``rollout:3``; ``was_reached`` is True once the debugger reached some rank.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = dict(names)
        self._is_one = len(names) == 1
        self.asked = set(names)
        self.stopped: set[int] = set()
        self.was_reached = False
        self._silent = set(names)
        self._answers: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<Dialogue [{len(self.stopped)} stopped, {len(self.asked)} asked, of {len(self._names)}]>"

    @property
    def is_over(self) -> bool:
        return not self.asked and not self.stopped

    @property
    def prompt(self) -> str:
        return f"({self._named(self.stopped)}) "

    def on_message(self, rank: int, state: str, text: str) -> None:
        """Process a rank's message; a rank that only reports that it is waiting stays in ``asked``."""
        if rank not in self._names or (rank not in self.asked and rank not in self.stopped):
            return
        self._silent.discard(rank)
        self.was_reached |= state not in OVER
        if state == "stopped":
            self.stopped.add(rank)
            self.asked.discard(rank)
        elif state in OVER:
            self.stopped.discard(rank)
            self.asked.discard(rank)
            text = text or f"{self._names[rank]} has ended\n"
        self._answers[rank] = self._answers.get(rank, "") + text

    def name_silent(self) -> None:
        for rank in sorted(self._silent & self.asked):
            words = "has not answered: it may be in C code that holds the interpreter's lock, or be stopped"
            self.on_message(rank, "waiting", f"{self._names[rank]} {words}\n")

    def ask(self) -> list[int]:
        """Return the ranks to which the next line goes, and mark them as asked."""
        ranks = sorted(self.stopped)
        self.asked |= self.stopped
        self.stopped.clear()
        return ranks

    def take_answers(self) -> str:
        """Return the answers since the last call, each distinct answer once, with the ranks that gave it."""
        alike: dict[str, list[int]] = {}
        for rank, text in sorted(self._answers.items()):
            if text:
                alike.setdefault(text, []).append(rank)
        self._answers.clear()
        return "".join(self._titled(text, ranks) for text, ranks in alike.items())

    def _titled(self, text: str, ranks: list[int]) -> str:
        lines = "".join(f"{printable(line)}\n" for line in text.removesuffix("\n").split("\n"))
        return lines if self._is_one else f"[{self._named(ranks)}]\n{lines}"

    def _named(self, ranks: Iterable[int]) -> str:
        groups: dict[str, list[int]] = {}
        for rank in ranks:
            group, _, number = self._names[rank].rpartition(":")
            groups.setdefault(group, []).append(int(number))
        return " ".join(f"{group}:{fold_ranks(numbers)}" for group, numbers in groups.items())
