"""Credit for puts: producer's balance, queue's ledger, and a random test of both."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.credit import ITEM_OVERHEAD_BYTES, CreditBalance, Ledger, Recall, cost
from rlinf_async._channels.state.queue import Queue
from rlinf_async._core.codec import encode

P, C, D = 1, 2, 3
K, L = b"k", b"l"
BYTES = 32 << 20
WINDOW = 512 << 10


def lending(max_bytes: int = BYTES, **options: Any) -> Queue:
    return Queue(max_bytes=max_bytes, max_buffered=2 * max_bytes, lends_to=lambda client: True, **options)


def acts(steps: list[Step]) -> list[Act]:
    return [Act(act) for act, _ in steps]


def recalls(steps: list[Step]) -> list[Recall]:
    return [what for act, what in steps if act == Act.RECALL]


# -- the two sides ----------------------------------------------------------------------------------------------------


def test_a_balance_pays_what_it_has_and_no_more() -> None:
    balance = CreditBalance()
    balance.add(10)
    assert balance.pay(6)
    assert not balance.pay(5)
    assert balance.empty() == 4
    assert not balance.pay(1)


def test_a_window_is_filled_up_once_half_of_it_is_used() -> None:
    ledger = Ledger(BYTES, lambda client: True)
    assert ledger.lend(P, 0) == WINDOW
    assert ledger.spend(P, WINDOW // 2 - 1)
    assert ledger.lend(P, 0) == 0
    assert ledger.spend(P, 1)
    assert ledger.lend(P, 0) == WINDOW // 2


def test_nothing_is_lent_where_the_budget_is_tight_or_small_or_the_party_is_elsewhere() -> None:
    assert Ledger(BYTES, lambda client: True).lend(P, BYTES * 3 // 4) == 0
    assert Ledger(BYTES, lambda client: False).lend(P, 0) == 0
    assert Ledger(BYTES).window == Ledger(1 << 20, lambda client: True).window == 0


def test_many_parties_do_not_share_more_than_an_eighth() -> None:
    ledger = Ledger(BYTES, lambda client: True)
    lent = [ledger.lend(party, 0) for party in range(100)]
    assert sum(lent) == ledger.outstanding == BYTES // 8


def test_who_pays_with_what_it_was_never_granted_is_refused() -> None:
    ledger = Ledger(BYTES, lambda client: True)
    with pytest.raises(ValueError, match="credit that it does not have"):
        ledger.spend(P, 1)
    ledger.lend(P, 0)
    with pytest.raises(ValueError, match="credit that it does not have"):
        ledger.spend(P, WINDOW + 1)


def test_a_recall_is_over_when_it_is_answered_and_what_was_under_way_has_come() -> None:
    ledger = Ledger(BYTES, lambda client: True)
    ledger.lend(P, 0)
    assert ledger.recall() == [Recall(P, 1)]
    assert ledger.recall() == []
    ledger.returned(P, WINDOW - 100, answers=True)
    assert ledger.lend(P, 0) == 0
    assert ledger.spend(P, 100)
    assert ledger.outstanding == 0
    assert ledger.lend(P, 0) == WINDOW
    assert not ledger.forfeit(Recall(P, 1)), "an old recall must not touch what was lent since"


def test_both_sides_reckon_the_same_price() -> None:
    for value in (1, b"x" * 1000, {"a": bytearray(40_000)}, b"y" * 100_000):
        encoded = encode(value)
        assert cost(encoded.nbytes) == cost(len(encoded.to_bytes()))
        assert cost(encoded.nbytes) >= encoded.nbytes + ITEM_OVERHEAD_BYTES


# -- a queue that lends -----------------------------------------------------------------------------------------------


def test_a_grant_follows_the_first_answer_and_paid_puts_have_none() -> None:
    queue = lending()
    assert acts(queue.put(P, 1, K, nbytes=10, body="a")) == [Act.ACCEPTED, Act.GRANT]
    assert queue.put(P, 2, K, nbytes=10, body="b", paid=10) == []
    assert queue.size(K) == 2
    assert queue.ledger.outstanding == WINDOW - 10


def test_a_bounded_key_lends_nothing() -> None:
    assert acts(lending(maxsize=5).put(P, 1, K, body="a")) == [Act.ACCEPTED]


def test_what_a_dead_producer_paid_for_is_in_and_what_it_did_not_use_is_free() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    queue.put(P, 3, K, nbytes=1, body="c", paid=1)  # number 2 never comes
    queue.drop(P)
    assert [item.body for item in queue.peek(K)] == ["a", "c"]
    assert queue.ledger.outstanding == 0


def test_close_waits_for_credit_and_takes_in_what_comes_meanwhile() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    assert recalls(queue.close()) == [Recall(P, 1)]
    assert acts(queue.put(C, 1, K, nbytes=1, body="x")) == [Act.CLOSED]
    assert queue.put(P, 2, K, nbytes=1, body="b", paid=1) == []
    assert not queue.closed
    queue.returned(P, WINDOW - 1)
    assert queue.closed
    assert [item.body for item in queue.peek(K)] == ["a", "b"]


def test_the_end_does_not_come_before_credit_is_back() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    queue.get(C, 1, K)
    queue.taken(C, [1])
    assert queue.get(C, 2, K) == []
    queue.close()
    assert acts(queue.put(P, 2, K, nbytes=1, body="b", paid=1)) == [Act.DELIVER]
    queue.taken(C, [2])
    queue.get(C, 3, K)
    assert acts(queue.returned(P, WINDOW - 1)) == [Act.ENDED]


def test_what_is_forfeited_at_the_close_is_lost_and_said_to_be() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    (recall,) = recalls(queue.close())
    queue.forfeit(recall)
    assert queue.closed
    assert acts(queue.put(P, 2, K, nbytes=1, body="b", paid=1)) == [Act.LOST]


def test_what_is_forfeited_under_pressure_waits_like_any_other() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    (recall,) = recalls(queue.put(C, 1, K, nbytes=BYTES - 1, body="large"))
    assert acts(queue.forfeit(recall)) == [Act.ACCEPTED]
    assert queue.put(P, 2, L, nbytes=1, body="b", paid=1) == []
    assert queue.size(L) == 0
    queue.get(D, 1, K)
    queue.get(D, 2, K)
    queue.taken(D, [1, 2])
    assert queue.size(L) == 1


def test_idle_credit_does_not_starve_a_put_that_waits() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    assert recalls(queue.put(C, 1, L, nbytes=BYTES - 1, body="large")) == [Recall(P, 1)]
    assert acts(queue.returned(P, WINDOW)) == [Act.ACCEPTED]


def test_put_nowait_is_refused_only_if_there_is_no_room_with_all_credit_back() -> None:
    for nbytes, outcome in ((BYTES - 1, Act.ACCEPTED), (BYTES, Act.FULL)):
        queue = lending()
        queue.put(P, 1, K, nbytes=1, body="a")
        assert acts(queue.put(C, 1, L, nbytes=nbytes, body="large", nowait=True)) == [Act.RECALL]
        assert acts(queue.returned(P, WINDOW)) == [outcome]
        assert queue.budget.buffered == 0


def test_a_paid_item_does_not_overtake_what_waits_under_its_key() -> None:
    queue = lending()
    queue.put(P, 1, K, nbytes=1, body="a")
    queue.put(P, 2, K, nbytes=BYTES - 1, body="large")
    queue.put(P, 3, K, nbytes=1, body="c", paid=1)
    queue.returned(P, WINDOW - 1)
    queue.get(C, 1, K)
    queue.taken(C, [1])
    queue.get(C, 2, K)
    queue.taken(C, [2])
    assert [item.body for item in queue.peek(K)] == ["c"]


# -- everything at random ---------------------------------------------------------------------------------------------


class Partner:
    """A process: what it has said and the queue has not heard, and the other way round."""

    def __init__(self) -> None:
        self.balance = CreditBalance()
        self.said: deque[Any] = deque()
        self.told: deque[Any] = deque()
        self.numbers = 0
        self.announced: dict[int, int] = {}


class LendingMachine(RuleBasedStateMachine):
    """Some processes put, with credit where they have some, and get; die; are not heard; until the queue is closed."""

    @initialize()
    def begin(self) -> None:
        self.dead: set[int] = set()
        self.max_bytes = 4 << 20
        self.queue = Queue(max_bytes=self.max_bytes, gone=self.dead, lends_to=lambda client: True)
        self.partners = {who: Partner() for who in (1, 2, 3)}
        self.identities = 0
        self.done: set[int] = set()
        """Items whose puts have returned."""
        self.had: set[int] = set()
        self.lost: set[int] = set()
        self.recalls: list[Recall] = []
        self.has_forfeited = False
        self.order: dict[tuple[int, bytes], list[int]] = {}

    def follow(self, steps: list[Step]) -> None:
        for act, what in steps:
            if act == Act.GRANT:
                self.partners[what.client].told.append(("grant", what.amount))
            elif act == Act.RECALL:
                self.recalls.append(what)
                self.partners[what.client].told.append(("recall", None))
            elif act == Act.PULL:
                partner = self.partners[what.producer]
                partner.said.append(("supply", what.number, partner.announced[what.number]))
            elif act == Act.LOST:
                assert self.has_forfeited
                self.lost.add(what.body)
            elif act == Act.ACCEPTED:
                self.done.add(what.body)
            elif act == Act.DELIVER:
                for item in what.items:
                    self.had.add(item.body)
                    latest = self.order.setdefault((item.producer, item.key), [])
                    assert not latest or latest[-1] < item.number, "overtaken"
                    latest.append(item.number)
                self.partners[what.consumer].said.append(("taken", what.number))

    @precondition(lambda self: len(self.dead) < 3)
    @rule(
        data=st.data(),
        key=st.sampled_from([K, L]),
        nbytes=st.sampled_from([1, 5_000, 60_000, 1 << 20, (4 << 20) - 50_000]),
    )
    def put(self, data: st.DataObject, key: bytes, nbytes: int) -> None:
        partner = self.partners[data.draw(st.sampled_from(self.living()))]
        partner.numbers += 1
        self.identities += 1
        partner.announced[partner.numbers] = self.identities
        paid = nbytes if partner.balance.pay(nbytes) else 0
        partner.said.append(("put", partner.numbers, key, nbytes, self.identities, paid))
        if paid:
            self.done.add(self.identities)

    @precondition(lambda self: len(self.dead) < 3)
    @rule(data=st.data(), key=st.sampled_from([K, L]))
    def get(self, data: st.DataObject, key: bytes) -> None:
        partner = self.partners[data.draw(st.sampled_from(self.living()))]
        partner.numbers += 1
        partner.said.append(("get", partner.numbers, key))

    @precondition(lambda self: len(self.dead) < 3)
    @rule(data=st.data(), count=st.integers(1, 5))
    def the_queue_hears(self, data: st.DataObject, count: int) -> None:
        self.hear(data.draw(st.sampled_from(self.living())), count)

    @precondition(lambda self: len(self.dead) < 3)
    @rule(data=st.data(), count=st.integers(1, 5))
    def a_process_hears(self, data: st.DataObject, count: int) -> None:
        self.tell(data.draw(st.sampled_from(self.living())), count)

    @rule()
    def patience_is_at_an_end(self) -> None:
        if self.recalls:
            before = self.queue.ledger.outstanding
            self.follow(self.queue.forfeit(self.recalls.pop(0)))
            self.has_forfeited |= self.queue.ledger.outstanding < before

    @precondition(lambda self: len(self.dead) < 2)
    @rule(data=st.data())
    def death(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(self.living()))
        while self.partners[who].said:
            self.hear(who, 1)
        self.dead.add(who)
        self.follow(self.queue.drop(who))

    @precondition(lambda self: not self.queue.closing)
    @rule()
    def close(self) -> None:
        self.follow(self.queue.close())

    def living(self) -> list[int]:
        return sorted(set(self.partners) - self.dead)

    def hear(self, who: int, count: int) -> None:
        said = self.partners[who].said
        for _ in range(min(count, len(said))):
            word, number, *rest = said.popleft()
            if word == "put":
                key, nbytes, identity, paid = rest
                self.follow(self.queue.put(who, number, key, nbytes=nbytes, body=identity, paid=paid))
            elif word == "get":
                self.follow(self.queue.get(who, number, rest[0]))
            elif word == "supply":
                self.follow(self.queue.supply(who, number, rest[0]))
            elif word == "taken":
                self.follow(self.queue.taken(who, [number]))
            else:
                self.follow(self.queue.returned(who, number))

    def tell(self, who: int, count: int) -> None:
        partner = self.partners[who]
        for _ in range(min(count, len(partner.told))):
            word, amount = partner.told.popleft()
            if word == "grant":
                partner.balance.add(amount)
            else:
                partner.said.append(("returned", partner.balance.empty()))

    @invariant()
    def no_byte_is_promised_twice(self) -> None:
        if not hasattr(self, "queue"):
            return
        ledger = self.queue.ledger
        assert self.queue.budget.used + ledger.outstanding <= self.max_bytes
        assert ledger.outstanding >= 0
        if not self.has_forfeited:
            total = 0
            for who in self.living():
                partner = self.partners[who]
                total += partner.balance._left
                total += sum(amount for word, amount in partner.told if word == "grant")
                total += sum(said[5] for said in partner.said if said[0] == "put")
                total += sum(said[1] for said in partner.said if said[0] == "returned")
            assert ledger.outstanding == total

    def teardown(self) -> None:
        """Everybody hears everything; then whatever was put is somewhere, and the queue closes."""
        if not hasattr(self, "queue"):
            return
        self.follow(self.queue.close())
        while any(self.partners[who].said or self.partners[who].told for who in self.living()):
            for who in self.living():
                self.tell(who, 1000)
                self.hear(who, 1000)
        assert self.queue.closed
        assert self.queue.ledger.outstanding == 0
        queued = {item.body for key in (K, L) for item in self.queue.peek(key)}
        waiting = {item.body for key_queue in self.queue._keys.values() for item in key_queue.puts}
        assert self.done <= queued | waiting | self.had | self.lost


LendingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None, derandomize=True)
TestLending = LendingMachine.TestCase
