"""Matching of arriving messages with posted receives: examples, and a state machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from rlinf_async._messaging.state.flow_control import MESSAGE_OVERHEAD_BYTES, SendWindow, WindowEntry
from rlinf_async._messaging.state.matching import Action, ActionKind, Arrivals, Message
from rlinf_async._messaging.state.message_facts import OBJECT, TENSOR

ROOM = 1000


class Receive:
    """Somebody who wants a message of one kind."""

    def __init__(self, kind: int = OBJECT) -> None:
        self.kind = kind


def refuses(receive: Any, message: Message) -> str | None:
    return None if receive.kind == message.kind else f"kind {message.kind}"


def arrivals(room: int = ROOM) -> Arrivals:
    return Arrivals(refuses, room)


def what(actions: list[Action]) -> list[Any]:
    return [(action.kind, action.receive, action.message.number if action.message else None) for action in actions]


def test_a_message_waits_for_its_receive_and_a_receive_for_its_message() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    assert line.data(1, OBJECT, None, 10, "one") == []
    assert line.has_message
    assert what(line.post(first)) == [(ActionKind.DELIVER, first, 1)]
    assert line.post(second) == []
    actions = line.data(2, OBJECT, None, 10, "two")
    assert what(actions) == [(ActionKind.DELIVER, second, 2)]
    assert actions[0].message is not None
    assert actions[0].message.content == "two"
    assert line.is_idle


def test_it_is_known_who_wants_a_message_that_is_on_its_way() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.data(1, OBJECT, None, 10)
    assert line.wanted_by(1) is None
    line.post(first)
    assert line.wanted_by(1) is first
    line.post(second)
    line.cancel(first)
    assert line.wanted_by(1) is second
    line.content(1, 0, "one")
    assert line.wanted_by(1) is None
    line.data(2, OBJECT, None, 10)
    assert line.content(2, 0, "two") == []  # it waits for a receive


def test_an_announced_message_is_asked_for_once_and_keeps_its_place() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.announce(1, OBJECT, None)
    line.data(2, OBJECT, None, 10, "two")
    assert what(line.post(first)) == [(ActionKind.GRANT, None, 1)]
    assert what(line.post(second)) == [(ActionKind.DELIVER, second, 2)]
    assert what(line.cancel(first)) == []
    assert what(line.post(first)) == []
    assert what(line.content(1, 0, "one")) == [(ActionKind.DELIVER, first, 1)]


def test_a_cancelled_receive_loses_nothing() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.post(first)
    assert line.cancel(first) == []
    assert line.data(1, OBJECT, None, 10, "one") == []
    assert what(line.post(second)) == [(ActionKind.DELIVER, second, 1)]


def test_what_was_on_its_way_to_a_cancelled_receive_goes_to_the_next_one() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.post(first)
    line.post(second)
    line.announce(1, OBJECT, None)
    assert line.cancel(first) == []
    assert what(line.content(1, 0, "one")) == [(ActionKind.DELIVER, second, 1)]


def test_what_is_given_back_stands_first_again() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.data(1, OBJECT, None, 10, "one")
    line.data(2, OBJECT, None, 10, "two")
    (action,) = line.post(first)
    assert action.message is not None
    assert line.give_back(action.message) == []
    assert what(line.post(second)) == [(ActionKind.DELIVER, second, 1)]


def test_what_is_given_back_takes_no_room_a_second_time() -> None:
    line = arrivals()
    line.data(1, OBJECT, None, 300, "one")
    (action,) = line.post(Receive())
    assert line.due() == 300
    assert action.message is not None
    line.give_back(action.message)
    line.post(Receive())
    line.data(2, OBJECT, None, 300, "two")
    line.post(Receive())
    assert line.due() == 600


def test_the_others_move_up_when_one_of_several_receives_is_cancelled() -> None:
    line = arrivals()
    receives = [Receive() for _ in range(4)]
    for number, receive in enumerate(receives, 1):
        line.post(receive)
        line.announce(number, OBJECT, None)
    line.cancel(receives[0])
    assert what(line.content(2, 0, "two")) == [(ActionKind.DELIVER, receives[2], 2)]
    assert what(line.content(1, 0, "one")) == [(ActionKind.DELIVER, receives[1], 1)]
    assert what(line.content(3, 0, "three")) == [(ActionKind.DELIVER, receives[3], 3)]


def test_what_is_withdrawn_on_its_way_returns_its_room() -> None:
    line = arrivals()
    line.data(1, OBJECT, None, 600)
    line.withdraw(1)
    assert line.due() == 600


def test_the_wrong_kind_is_refused_and_the_line_goes_on() -> None:
    line, first, second = arrivals(), Receive(TENSOR), Receive(OBJECT)
    line.post(first)
    line.post(second)
    actions = line.data(1, OBJECT, None, 10, "one")
    assert what(actions) == [(ActionKind.REFUSE, first, 1)]
    assert actions[0].why == "kind 0"
    assert what(line.data(2, OBJECT, None, 10, "two")) == [(ActionKind.DELIVER, second, 2)]


def test_what_is_refused_before_its_content_is_here_returns_its_room() -> None:
    line = arrivals()
    line.data(1, OBJECT, None, 600)
    assert what(line.post(Receive(TENSOR)))[0][0] is ActionKind.REFUSE
    assert line.due() == 600
    assert line.content(1, 0, "late") == []


def test_a_withdrawn_message_never_was() -> None:
    line, first = arrivals(), Receive()
    line.post(first)
    line.announce(1, OBJECT, None)
    line.data(2, OBJECT, None, 10, "two")
    assert what(line.withdraw(1)) == [(ActionKind.DELIVER, first, 2)]
    assert line.content(1, 0, "late") == []


def test_a_message_that_cannot_be_had_fails_its_receive_whenever_that_comes() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    error = MemoryError("none")
    line.post(first)
    line.data(1, OBJECT, None, 10)
    assert [(action.kind, action.receive, action.why) for action in line.fail_content(1, error)] == [
        (ActionKind.REFUSE, first, error)
    ]
    line.data(2, OBJECT, None, 10)
    assert line.fail_content(2, error) == []
    assert [(action.kind, action.receive, action.why) for action in line.post(second)] == [
        (ActionKind.REFUSE, second, error)
    ]


def test_what_is_sent_again_arrives_once() -> None:
    line, first, second = arrivals(), Receive(), Receive()
    line.post(first)
    line.data(1, OBJECT, None, 10)
    assert what(line.content(1, 0, "by one way")) == [(ActionKind.DELIVER, first, 1)]
    line.post(second)
    assert line.content(1, 0, "by another") == []
    assert line.data(1, OBJECT, None, 10, "all of it") == []


def test_at_the_senders_end_what_is_here_is_delivered_and_the_rest_fails() -> None:
    line, first, second, third = arrivals(), Receive(), Receive(), Receive()
    line.announce(1, OBJECT, None)
    line.data(2, OBJECT, None, 10, "two")
    line.post(first)
    gone = ConnectionError("gone")
    assert what(line.fail(gone)) == [(ActionKind.DELIVER, first, 2)]
    for late in (second, third):  # each fails once
        (action,) = line.post(late)
        assert (action.kind, action.receive, action.why) == (ActionKind.FAIL, late, gone)
    assert line.fail(gone) == []


def test_the_sender_hears_of_room_now_and_then_and_at_once_if_it_waits() -> None:
    line = arrivals()
    for number in range(1, 4):
        line.data(number, OBJECT, None, 100, "x")
        line.post(Receive())
    assert line.due() == 300
    assert line.due() is None
    line.data(4, OBJECT, None, 100, "x")
    line.post(Receive())
    assert line.due() is None
    line.announce(5, OBJECT, None)
    assert line.due() == 400


def test_many_cancelled_receives_leave_nothing() -> None:
    line = arrivals()
    for _ in range(1000):
        receive = Receive()
        line.post(receive)
        line.cancel(receive)
    assert len(line._posted) < 200


# -- everything at once ---------------------------------------------------------------------------------------------


class Sent(WindowEntry):
    """A message as the test knows it."""

    def __init__(self, kind: int, nbytes: int) -> None:
        self.kind = kind
        super().__init__(nbytes)
        self.nbytes = nbytes
        self.withdrawn = False
        self.had: list[int] = []
        """By which receiver; refused counts."""


class Wanting(Receive):
    """A receive as the test knows it."""

    def __init__(self, kind: int, order: int) -> None:
        super().__init__(kind)
        self.order = order
        self.state = "posted"


class Side:
    """One receiver: its line, the frames between, and what it has had."""

    def __init__(self) -> None:
        self.line = Arrivals(refuses, ROOM)
        self.to: deque[tuple[Any, ...]] = deque()
        self.back: deque[tuple[Any, ...]] = deque()
        self.links: list[tuple[int, Sent]] = []
        """Contents that are on their way by another way."""
        self.had: list[tuple[int, Wanting]] = []
        self.posted = 0
        self.is_disordered = False
        """A message has been withdrawn or given back, or its receive cancelled after a later one was delivered to."""


class Exchange(RuleBasedStateMachine):
    """One sender, one or two receivers, frames in order between them, contents by slow links that lose some.

    Whatever the order of events: no message is lost, none is had twice, and each receiver has them in order.
    """

    receives = Bundle("receives")
    messages = Bundle("messages")

    @initialize(count=st.integers(1, 2))
    def begin(self, count: int) -> None:
        self.sides = [Side() for _ in range(count)]
        self.window = SendWindow(range(count), ROOM)
        self.sent: list[Sent] = []
        self.died = False

    # -- the sender ---------------------------------------------------------------------------------------------

    @rule(
        target=messages,
        nbytes=st.sampled_from([0, 10, 300, 700, 5000]),
        tensor=st.booleans(),
        by_link=st.booleans(),
    )
    def send(self, nbytes: int, tensor: bool, by_link: bool) -> Sent:
        sent = Sent(self.kind(tensor), nbytes)
        if self.died:
            return sent
        self.sent.append(sent)
        self.window.add(sent)
        for side in self.sides:
            if sent.left:
                side.to.append(("data", sent, sent.charge, by_link))
            else:
                side.to.append(("announce", sent))
        return sent

    @rule(sent=messages)
    def withdraw(self, sent: Sent) -> None:
        """As the user's deadline does, for what has not left."""
        if sent.number and not self.died and self.window.withdraw(sent.number):
            sent.withdrawn = True
            for side in self.sides:
                side.to.append(("withdraw", sent))
                side.is_disordered = True

    def leave(self, leaving: Iterable[Any]) -> None:
        for entry in leaving:
            for side in self.sides:
                side.to.append(("content", entry, entry.charge, bool(entry.number % 2)))

    @rule()
    def die(self) -> None:
        """What has left arrives; what is only on a link does not."""
        if self.died or len(self.sent) < 8:
            return
        self.died = True
        self.window.fail()
        for side in self.sides:
            side.to.append(("end",))

    def kind(self, tensor: bool) -> int:
        """What goes to several is of one kind."""
        return TENSOR if tensor and len(self.sides) == 1 else OBJECT

    # -- the network --------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def frame_arrives(self, data: st.DataObject) -> None:
        side = data.draw(st.sampled_from(self.sides))
        if side.to:
            self.arrive(side, *side.to.popleft())

    def arrive(self, side: Side, kind: str, sent: Sent | None = None, charge: int = 0, by_link: bool = False) -> None:
        line = side.line
        if sent is None:
            side.links.clear()
            self.do(side, line.fail(ConnectionError("dead")))
            return
        number = sent.number
        if kind == "announce":
            self.do(side, line.announce(number, sent.kind, None))
        elif kind == "withdraw":
            self.do(side, line.withdraw(number))
        elif kind == "data":
            self.do(side, line.data(number, sent.kind, None, charge, *([] if by_link else [sent])))
            if by_link:
                side.links.append((number, sent))
        elif not by_link:
            self.do(side, line.content(number, charge, sent))
        else:
            if line.expect(number, charge) is not None:
                side.links.append((number, sent))
            self.do(side, [])

    @rule(data=st.data(), lost=st.booleans(), twice=st.booleans())
    def link_ends(self, data: st.DataObject, lost: bool, twice: bool) -> None:
        """A content is here; or it was lost, and is sent again in a frame; or both, because one side was wrong."""
        side = data.draw(st.sampled_from(self.sides))
        if not side.links:
            return
        number, sent = side.links.pop(data.draw(st.integers(0, len(side.links) - 1)))
        if (lost or twice) and not self.died:
            side.to.append(("content", sent, 0, False))
        if not lost or self.died:
            self.do(side, side.line.content(number, 0, sent))

    @rule(data=st.data())
    def answer_arrives(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.sides) - 1))
        if self.sides[index].back:
            self.answer(index)

    def answer(self, index: int) -> None:
        kind, value = self.sides[index].back.popleft()
        if self.died:
            return
        if kind == "room":
            self.leave(self.window.received(index, value))
        elif kind == "grant":
            entry = self.window.granted(index, value)
            self.leave([entry] if entry is not None else [])

    # -- the receivers ------------------------------------------------------------------------------------------

    @rule(target=receives, data=st.data(), tensor=st.booleans())
    def post(self, data: st.DataObject, tensor: bool) -> tuple[Side, Wanting]:
        side = data.draw(st.sampled_from(self.sides))
        side.posted += 1
        wanting = Wanting(self.kind(tensor), side.posted)
        self.do(side, side.line.post(wanting))
        return side, wanting

    @rule(receive=consumes(receives))
    def cancel(self, receive: tuple[Side, Wanting]) -> None:
        side, wanting = receive
        if wanting.state == "posted":
            wanting.state = "cancelled"
            # Its message, still under way, goes to a later receive, behind those that have been delivered to already.
            side.is_disordered |= any(had.order > wanting.order for _, had in side.had)
            self.do(side, side.line.cancel(wanting))

    @rule(receive=consumes(receives))
    def cancel_at_the_last_moment(self, receive: tuple[Side, Wanting]) -> None:
        """The message was here, and its waiter is cancelled before it has it."""
        side, wanting = receive
        last = next((had for had in side.had if had[1] is wanting), None)
        if last is None or wanting.state != "delivered":
            return
        side.had.remove(last)
        side.is_disordered = True
        wanting.state = "cancelled"
        sent = next(sent for sent in self.sent if sent.number == last[0])
        sent.had.remove(self.sides.index(side))
        message = Message(last[0], sent.kind, None)
        message.content = sent
        self.do(side, side.line.give_back(message))

    def do(self, side: Side, actions: list[Action]) -> None:
        index = self.sides.index(side)
        for action in actions:
            if action.kind is ActionKind.FAIL:
                action.receive.state = "failed"
                assert self.died
            elif action.kind is ActionKind.GRANT:
                assert action.message is not None
                side.back.append(("grant", action.message.number))
            else:
                assert action.message is not None
                assert action.receive.state == "posted"
                action.receive.state = "delivered" if action.kind is ActionKind.DELIVER else "refused"
                assert (action.kind is ActionKind.DELIVER) == (action.receive.kind == action.message.kind)
                sent = next(sent for sent in self.sent if sent.number == action.message.number)
                assert index not in sent.had, "had twice"
                assert action.kind is ActionKind.REFUSE or action.message.content is sent
                sent.had.append(index)
                side.had.append((action.message.number, action.receive))
                if action.kind is ActionKind.REFUSE:  # what was announced is not sent any more
                    self.window.withdraw(action.message.number)
        total = side.line.due()
        if total is not None:
            side.back.append(("room", total))

    # -- what holds ---------------------------------------------------------------------------------------------

    @invariant()
    def no_more_is_outstanding_than_there_is_room(self) -> None:
        if hasattr(self, "window"):
            assert 0 <= self.window.outstanding <= ROOM

    def teardown(self) -> None:
        """Everything comes to rest: then every message that was not withdrawn has been had by everybody."""
        if not hasattr(self, "sides"):
            return
        for side in self.sides:
            for _ in range(len(self.sent) + 1):
                side.posted += 1
                self.do(side, side.line.post(Wanting(OBJECT, side.posted)))
        while any(side.to or side.back or side.links for side in self.sides):
            for index, side in enumerate(self.sides):
                while side.to:
                    self.arrive(side, *side.to.popleft())
                while side.links:
                    number, sent = side.links.pop()
                    self.do(side, side.line.content(number, 0, sent))
                while side.back:
                    self.answer(index)
        for side in self.sides:
            if not side.is_disordered:
                numbers = [number for number, _ in sorted(side.had, key=lambda had: had[1].order)]
                assert numbers == sorted(numbers)
        if self.died:
            assert not any(side.line._wanted for side in self.sides)
            return
        for sent in self.sent:
            assert sorted(sent.had) == list(range(len(self.sides))) or sent.withdrawn, sent
        assert self.window.outstanding < ROOM // 4
        assert {side.line._total for side in self.sides} == {self.window._sent}


Exchange.TestCase.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)
TestEverythingAtOnce = Exchange.TestCase


def test_overhead_is_small() -> None:
    assert MESSAGE_OVERHEAD_BYTES <= 128
