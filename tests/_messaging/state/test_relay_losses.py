"""Receivers that join, leave and lose their host's memory at awkward moments of a relay's plan."""

from __future__ import annotations

from typing import Any
from unittest import mock

from rlinf_async._messaging.state.relay_plan import RelayPlan
from tests._messaging.state.test_relay_plan import Member, Payload


def plan_with(*members: Member, chain_from: int = 1 << 40) -> RelayPlan:
    plan = RelayPlan(mock.Mock(), chain_from=chain_from)
    for member in members:
        plan.join(member, None)
    return plan


def done(plan: RelayPlan, what: str) -> list[Any]:
    """Arguments of the actions of that name that it wants; all that it wants is forgotten."""
    actions = [arguments for action, arguments in plan.actions if action is getattr(plan._owner, what)]
    plan.actions.clear()
    return actions


def published(plan: RelayPlan, number: int, *members: Member) -> Payload:
    job = Payload(number)
    job.facts = (b"", 0)
    plan.publish(job, members)
    return job


def test_who_has_not_joined_gets_nothing_on_a_machine_that_all_have_left() -> None:
    first, second = Member(1, 0), Member(1, 1)
    plan = plan_with(first)
    plan.leave(first)
    assert not plan.begin(Payload(1), [second])
    published(plan, 2, second)
    assert done(plan, "send") == []


def test_a_receiver_that_cannot_open_its_hosts_memory_becomes_the_host() -> None:
    host, other = Member(1, 0), Member(1, 1)
    plan = plan_with(host, other)
    (stream_id,) = [stream_id for receiver, stream_id in done(plan, "appoint") if receiver is host]
    job = published(plan, 1, host, other)
    plan.landed(host, 1, None, "of the host", stream_id)
    plan.actions.clear()
    plan.lost(other, "of the host", job)
    assert [receiver for receiver, _ in done(plan, "appoint")] == [other]


def test_a_receiver_that_cannot_open_what_another_host_had_is_told_what_there_is_now() -> None:
    host, other = Member(1, 0), Member(1, 1)
    plan = plan_with(host, other)
    (stream_id,) = [stream_id for receiver, stream_id in done(plan, "appoint") if receiver is host]
    job = published(plan, 1, host, other)
    plan.landed(host, 1, None, "of this host", stream_id)
    plan.actions.clear()
    plan.lost(other, "of the one before", job)
    assert done(plan, "end") == [([other], 1, "of this host", None)]
    plan.lost(host, "of this host", job)
    assert done(plan, "appoint") == [], "it has it itself"


def test_whoever_waits_for_what_is_on_its_way_goes_on_waiting_when_the_host_is_replaced() -> None:
    host, other, third = Member(1, 0), Member(1, 1), Member(1, 2)
    plan = plan_with(host, other, third)
    (stream_id,) = [stream_id for receiver, stream_id in done(plan, "appoint") if receiver is host]
    published(plan, 1, host, other, third)
    plan.landed(host, 1, None, "of the host", stream_id)
    job = published(plan, 2, host, third)
    plan.actions.clear()
    plan.lost(other, "of the host", job)
    ((_, stream_id),) = done(plan, "appoint")
    plan.landed(other, 2, None, "of the other", stream_id)
    assert done(plan, "end") == [([host, third, other], 2, "of the other", None)]


def test_each_receiver_of_a_machine_is_tried_as_its_host_although_others_have_failed_and_left() -> None:
    first, second, third = Member(1, 0), Member(1, 1), Member(1, 2)
    plan = plan_with(first, second, third)
    published(plan, 1, first, second, third)
    for host, gone in ((first, True), (second, False)):
        (transfer,) = [machine.transfer for machine in plan._machines.values()]
        assert transfer is not None
        assert transfer.machine.receivers[0] is host
        transfer.job.pin()
        plan.sent(transfer, OSError("it does not come through"))
        if gone:
            plan.leave(first)
    (transfer,) = [machine.transfer for machine in plan._machines.values()]
    assert transfer is not None
    assert transfer.machine.receivers[0] is third
    assert done(plan, "end") == []
    transfer.job.pin()
    plan.sent(transfer, OSError("nor to that one"))
    assert [receivers for receivers, *_ in done(plan, "end")] == [[second, third]]


def test_a_chain_that_is_cut_lets_the_next_payload_go() -> None:
    first, second = Member(1, 0), Member(2, 1)
    plan = plan_with(first, second, chain_from=1)
    streams = dict(done(plan, "appoint"))
    published(plan, 1, first, second)
    plan.landed(first, 1, None, "of the first", streams[first])
    following = Payload(2, may_wait=True)
    following.facts = (b"", 0)
    plan.publish(following, [first, second])
    transfer = plan._machines[2].transfer
    assert transfer is not None
    plan.actions.clear()
    plan.stuck(first, transfer.stream_id, OSError("its memory is gone"))
    assert [(receiver, number) for receiver, what, number, *_ in done(plan, "send") if what == "bring"] == [
        (second, 1),
        (first, 2),
    ]
