"""Arguments that name workers; receives that are abandoned while their message arrives."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rlinf_async._messaging.operation import Member, ReceiveWork, expand
from rlinf_async._messaging.state.matching import Message
from rlinf_async.errors import ClosedError


class Anything:
    def refuses(self, message: Message) -> str | None:
        return None

    def place(self) -> None:
        return None

    def arrived(self, content: Any) -> None:
        pass

    def value(self, message: Message) -> Any:
        return message.content


class GivenUp(ReceiveWork[Any]):
    """Its last waiter is cancelled, in another thread, when the message is just here."""

    def __init__(self, *, is_here: bool) -> None:
        super().__init__("recv() from", "a peer", None, Anything())
        self.is_here = is_here

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        if error is None and not self.done():
            message, self._message = self._message, self._message if self.is_here else None
            self._lose_interest()
            self._message = self._message if self.is_here else message
        return super()._settle(value, error)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_message_goes_back_once_whenever_its_receive_is_given_up(is_here: bool) -> None:
    receive = GivenUp(is_here=is_here)
    back: list[Message] = []
    receive.back = back.append
    receive._was_awaited = True
    message = Message(1, 0, None)
    message.content = "content"
    if not receive.deliver(message):
        back.append(message)  # as its inbox does
    assert back == [message]
    with pytest.raises(ClosedError):
        receive._result()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_message_goes_back_when_the_last_waiter_is_cancelled_before_it_has_it(others: int) -> None:
    receive: ReceiveWork[Any] = ReceiveWork("recv() from", "a peer", None, Anything())
    back: list[Message] = []
    receive.back = back.append

    async def wait() -> Any:
        return await receive

    last, *rest = [asyncio.create_task(wait()) for _ in range(1 + others)]
    await asyncio.sleep(0)
    message = Message(1, 0, None)
    message.content = "content"
    assert receive.deliver(message)
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert await asyncio.gather(*rest) == ["content"] * others
    assert back == [message] * (not others)


def test_who_asks_for_the_result_while_another_thread_rebuilds_it_has_the_same() -> None:
    rebuilding, asked = threading.Event(), threading.Event()

    class Slowly(Anything):
        def value(self, message: Message) -> Any:
            rebuilding.set()
            asked.wait(0.3)
            return message.content

    receive: ReceiveWork[Any] = ReceiveWork("recv() from", "a peer", None, Slowly())
    message = Message(1, 0, None)
    message.content = "content"
    receive.deliver(message)
    first = threading.Thread(target=receive.wait)
    first.start()
    rebuilding.wait(10)
    assert receive.wait(0) == "content"
    asked.set()
    first.join(10)


@pytest.mark.parametrize(
    ("rank", "member"),
    [
        (3, Member("g", 3)),
        ([3], Member("g", 3)),
        ((2, 0), Member("g:2", 0)),
        ([2, 0, 5], Member("g:2:0", 5)),
    ],
)
def test_a_rank_or_a_path_of_ranks_names_a_worker(rank: Any, member: Member) -> None:
    assert Member.of("g", rank) == member


@pytest.mark.parametrize("rank", [None, 1.0, "1", True, [1, "2"], {1}, object()])
def test_anything_else_does_not(rank: Any) -> None:
    with pytest.raises(TypeError, match="a rank of 'g' is an int, or a path of ints"):
        Member.of("g", rank)


def test_the_members_of_a_broadcast_are_expanded_in_order_and_once() -> None:
    members, source = expand([("a", 1), ("b", [0, 1]), ("a", (1,)), ("b", [(0, 2), (1,)]), ("c", (0, 1))], None)
    assert members == [Member("a", 1), Member("b", 0), Member("b", 1), Member("b:0", 2), Member("c:0", 1)]
    assert source == Member("a", 1)
    assert expand([("a", [0, 1])], ("a", (1,)))[1] == Member("a", 1)


@pytest.mark.parametrize("groups", [None, [], [("a", [])]])
def test_a_broadcast_without_members_is_an_error(groups: Any) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        expand(groups, None)


@pytest.mark.parametrize("groups", ["a", (("a", 0),), ["a"], [("a",)], [("a", None)], [(3, 0)], [("a", ["0"])]])
def test_members_that_are_not_as_they_should_be_are_an_error(groups: Any) -> None:
    with pytest.raises(TypeError):
        expand(groups, None)


def test_a_source_must_be_a_member() -> None:
    with pytest.raises(ValueError, match="src= is rank 2 of group 'a', which is not in groups=: rank 0 of group 'a'"):
        expand([("a", 0)], ("a", 2))
    with pytest.raises(TypeError, match="src= takes a"):
        expand([("a", 0)], "a")
