"""One view of who is lost: node 0's word, and nothing before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._core.pool import Pool
from rlinf_async.errors import AuthError
from rlinf_launcher.daemon.handlers import Handlers, Requester
from rlinf_launcher.daemon.membership import Membership
from rlinf_launcher.daemon.node_link import NodeLink
from rlinf_launcher.daemon.router import Router


class Link:
    """A link to another node whose frames a test carries over."""

    def __init__(self) -> None:
        self.on_control: Any = None
        self.on_bulk: Any = None
        self.on_lost: Any = None
        self.lease = 15.0
        self.peer_has_ended = False
        self.seconds_down = 0.0
        self.far: Link | None = None

    def send(self, data: bytes) -> None:
        if self.far is not None:
            self.far.on_control(data)

    async def send_bulk(self, piece: bytes) -> None:
        raise AssertionError("no bodies are sent here")

    async def close(self) -> None:
        self.far = None


class Daemon:
    """What a daemon has to know of the others, and what it does about them."""

    def __init__(self, node: int) -> None:
        self.lost: list[tuple[int, int]] = []
        self.cut_off: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.router = Router(asyncio.get_running_loop(), node, self.request)
        self.membership = Membership(self.router)
        self.membership.on_lost = lambda link, facts: self.lost.append((facts["epoch"], facts["node"]))
        self.membership.on_cut_off = self.cut_off.append
        self.handlers = Handlers(self.router, frozenset())
        self.handlers.register(operations.ReportLink, self.membership.report_link)
        self.handlers.register(operations.AnswerNode, self.membership.answer_node)
        self.handlers.register(operations.NodeIsLost, self.membership.node_is_lost)
        self.links: dict[int, Link] = {}

    def request(self, source: int, number: int, name: str, fields: Any) -> None:
        task = asyncio.create_task(self.handlers.handle(Requester(source, number), name, fields))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def connect(self, other: Daemon) -> None:
        pair = Link(), Link()
        pair[0].far, pair[1].far = pair[1], pair[0]
        for daemon, to, link in ((self, other, pair[0]), (other, self, pair[1])):
            node = to.router.node
            tell, over = daemon.router.from_node, daemon.membership.link_over
            node_link = NodeLink(node, f"n{node}", link, tell, over, Pool(0))
            daemon.links[node] = link
            daemon.router.node_links[node] = node_link
            node_link.open()


async def run_of(count: int) -> list[Daemon]:
    daemons = [Daemon(node) for node in range(count)]
    for number, daemon in enumerate(daemons):
        for other in daemons[number + 1 :]:
            daemon.connect(other)
    return daemons


def cut(one: Daemon, other: Daemon) -> None:
    """Nothing crosses between the two; neither knows of it yet."""
    one.links[other.router.node].far = other.links[one.router.node].far = None


def end(one: Daemon, other: Daemon, *, peer_has_ended: bool = False) -> None:
    """The lease of their link is over by this one's clock, or the other one is known to be gone."""
    link = one.links[other.router.node]
    link.far, link.peer_has_ended = None, peer_has_ended
    link.on_lost("no sign of life")


async def settle(*daemons: Daemon) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_node_that_node_0_has_lost_is_lost_for_everybody_in_the_same_epoch() -> None:
    zero, one, two, three = await run_of(4)
    end(zero, two)
    await settle()
    end(zero, three)
    await settle()
    assert zero.lost == one.lost == [(1, 2), (2, 3)]
    assert three.lost[:1] == [(1, 2)]
    assert two.lost == []


async def test_a_node_acts_on_no_loss_that_node_0_has_not_declared() -> None:
    zero, one, two = await run_of(3)
    cut(zero, two)
    end(one, two)
    await settle()
    assert zero.lost == one.lost == []
    assert one.router.node_links[2].lost is None
    assert one.router.node_links[2].over == "no sign of life"
    end(zero, two)
    await settle()
    assert zero.lost == one.lost == [(1, 2)]
    assert not any(daemon.tasks for daemon in (zero, one))


@pytest.mark.parametrize("first", [1, 2])
async def test_of_two_that_do_not_reach_each_other_the_higher_one_is_lost_once_and_ends_itself(first: int) -> None:
    zero, one, two, three = daemons = await run_of(4)
    cut(one, two)
    end(daemons[first], daemons[3 - first])
    end(daemons[3 - first], daemons[first])
    await settle()
    assert zero.lost == one.lost == three.lost == [(1, 2)]
    assert two.lost == []
    way = f"no way between n{first} and n{3 - first} (no sign of life)"
    assert two.cut_off == [f"node 0 has declared it lost: {way}"]
    assert one.cut_off == []


async def test_a_node_that_does_not_reach_node_0_ends_itself_and_judges_nobody() -> None:
    zero, one, two = await run_of(3)
    cut(zero, one)
    end(one, zero)
    await settle()
    assert one.cut_off == ["no sign of life"]
    assert zero.lost == one.lost == two.lost == []


async def test_where_node_0s_daemon_is_gone_each_node_goes_by_its_own_links() -> None:
    _, one, two, three = await run_of(4)
    end(one, three)  # reported to node 0, which has no time to answer
    end(one, _, peer_has_ended=True)
    assert sorted(one.lost) == [(0, 0), (0, 3)]
    end(one, two)
    assert sorted(one.lost) == [(0, 0), (0, 2), (0, 3)]
    assert one.cut_off == []


async def test_an_old_word_changes_nothing_and_only_node_0s_counts() -> None:
    _, one, _, _ = await run_of(4)
    daemon_0, daemon_2 = frames.endpoint(0, 0), frames.endpoint(2, 0)
    word = operations.NodeIsLost(1, 2, "it burnt")
    await one.membership.node_is_lost(Requester(daemon_0, 0), word)
    await one.membership.node_is_lost(Requester(daemon_0, 0), operations.NodeIsLost(1, 3, "it burnt"))
    assert one.lost == [(1, 2)]
    with pytest.raises(AuthError, match="node 2 declares node 3 lost: node 0 does that"):
        await one.membership.node_is_lost(Requester(daemon_2, 0), operations.NodeIsLost(2, 3, "it burnt"))
    with pytest.raises(AuthError, match="only daemons"):
        await one.membership.report_link(Requester(frames.endpoint(1, 5), 0), operations.ReportLink(3, "it burnt"))


async def test_a_lease_that_a_configuration_sets_is_that_of_every_link() -> None:
    _, one, _ = await run_of(3)
    driver = Requester(frames.endpoint(1, 7), 0)
    await one.membership.set_lease(driver, operations.SetLease(4))
    assert [link.lease for link in one.links.values()] == [4, 4]
    with pytest.raises(ValueError, match="a lease of 1 s is out of bounds"):
        await one.membership.set_lease(driver, operations.SetLease(1))


async def test_what_is_asked_about_the_present_of_a_node_that_is_out_of_reach_is_answered_here() -> None:
    zero, one = await run_of(2)
    zero.links[1].seconds_down = 6.2
    answer = zero.router.ask(1, operations.Inspect([1], ["oldest"]))
    with pytest.raises(Exception, match="the link to n1 is down for 6 s"):
        await answer
    del one


async def test_a_report_that_comes_while_node_0_ends_is_not_waited_for() -> None:
    first, second, third = await run_of(3)
    first.membership.close()
    cut(first, third)
    end(second, third)
    async with asyncio.timeout(5):
        await asyncio.gather(*first.tasks)
    assert first.lost == []
