"""Order in which a relay gives up what is under way on one of its lines."""

from __future__ import annotations

from rlinf_async._messaging.landing import abandon_works
from rlinf_async.work import Work


class Noting(Work[None]):
    def __init__(self, number: int, given_up: list[int]) -> None:
        super().__init__()
        self.number, self.given_up = number, given_up

    def _abandon(self) -> None:
        self.given_up.append(self.number)


def test_the_last_is_given_up_first_and_what_has_ended_is_left_alone() -> None:
    """A message that is withdrawn has those behind it move up, to receives that they do not fit."""
    given_up: list[int] = []
    works = [Noting(number, given_up) for number in range(4)]
    works[1]._settle()
    abandon_works(works)
    assert given_up == [3, 2, 0]
