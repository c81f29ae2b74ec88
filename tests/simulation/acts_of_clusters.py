"""Acts of whole clusters: relayed broadcasts, weights, a group with few restarts, and questions about the run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlinf_async import ClosedError, NodePlacementStrategy, WorkerDied, each
from rlinf_async._core import frames
from rlinf_async._messaging import relayed_broadcast
from rlinf_async._simulation.stand_ins import replace
from tests.simulation import crew, fleet, subject
from tests.simulation.cluster_families import TRAINER
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.operations import Operation
from tests.simulation.stage import Stage

ANSWER_S = 7.0
"""Seconds beyond a deadline within which its error comes: daemons have five to say what its ranks do."""


@dataclass
class Invitation:
    """The group of guests.

    Attributes:
        deaths: ranks that were killed once all had been constructed.
        by_hand: restarts that the driver has asked for.
        was_killed: a rank was, whether or not all had been constructed.
        born_by: when its constructors had ended, by the driver's clock; None before.
    """

    group: Any
    size: int
    restart: str | None
    max_restarts: int
    window: float
    call_timeout: float
    frail: int
    deaths: list[int] = field(default_factory=list)
    by_hand: int = 0
    born_by: float | None = None
    was_killed: bool = False
    is_closed: bool = False

    @property
    def lives_on(self) -> bool:
        """True if each rank that dies is started again."""
        return bool(self.restart) and self.max_restarts > 1 and not self.frail


class ClusterActs(Stage):
    """Relays, weights, guests and looks."""

    # -- relays and weights -------------------------------------------------------------------------------------

    async def do_r_cast(
        self, source: int, sizes: Sequence[int], gives_up: int | None, patience: float | None, late: int | None = None
    ) -> None:
        nonce = next(self.nonces)
        for rank in range(len(self.program.placement[CREW])):
            facts = (source, nonce, sizes, patience if rank == gives_up else None, fleet.LATE_S if rank == late else 0)
            self.script(f"{rank} in broadcast {nonce}", (CREW, rank), "relay_all", *facts, meets="message")

    async def do_r_short(self, seconds: float) -> None:
        """No host of a broadcast has shared memory for what comes."""

        async def be_short() -> None:
            restore = replace(relayed_broadcast, "fits", lambda _: False)
            try:
                await asyncio.sleep(seconds)
            finally:
                restore()

        self.start("no room for broadcasts", be_short())

    async def do_r_hop_dies(self, deaf_s: float) -> None:
        """Kill a host as soon as another one passes a piece on to it; the source may hear of the death that much later.

        A piece is on its way for milliseconds, which a kill at a random moment misses.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[tuple[int, int]] = loop.create_future()
        send = relayed_broadcast.Carrier.send_tensor

        def tell(way: tuple[int, int]) -> None:
            if not found.done():
                found.set_result(way)

        def send_and_tell(carrier: Any, piece: Any, line: int, receiver: int | None = None) -> Any:
            if receiver is not None:
                way = carrier.node, receiver
                # This is the host's process; the driver's future is to be settled in none.
                self.sim.scheduler.after(0.0, functools.partial(tell, way))
            return send(carrier, piece, line, receiver)

        async def lie_in_wait() -> None:
            restore = replace(relayed_broadcast.Carrier, "send_tensor", send_and_tell)
            try:
                async with asyncio.timeout(30.0):
                    node, endpoint = await found
            finally:
                restore()
            if deaf_s:
                await self.do_cut_way(frames.node_of(endpoint), node, deaf_s)
            endpoints = self.groups[CREW]._members.endpoints
            await self.do_kill((CREW, endpoints.index(endpoint)))

        self.start("the death of a host to which pieces go", lie_in_wait())

    async def do_w_train(self, versions: int, pause: float, numbers: int, options: Any) -> None:
        run = fleet.RUN_STEP * (1 + next(self.nonces))
        self.script(f"trainer {run}", (TRAINER, 0), "publish_weights", run, versions, pause, numbers, dict(options))

    async def do_w_follow(self, rank: int, numbers: int, reads: int, pause: float, options: Any) -> None:
        nonce = next(self.nonces)
        name = f"follower {nonce} at rank {rank}"
        self.script(name, (CREW, rank), "follow_weights", nonce, numbers, reads, pause, dict(options))

    async def do_r_self(self, rank: int, size: int) -> None:
        nonce = next(self.nonces)
        self.script(f"{rank} sends itself {nonce}", (CREW, rank), "send_self", nonce, size, meets="message")

    async def do_r_tensor(self, one: int, other: int, size: int, fits: str) -> None:
        if "looks" in self.program.families or one == other:  # whose talks go the same way
            return
        facts = (next(self.nonces), size, fits)
        self.script(f"{one} sends {other} a tensor", (CREW, one), "give_tensor", other, *facts, meets="message")
        self.script(f"{other} takes a tensor of {one}", (CREW, other), "take_tensor", one, *facts, meets="message")

    # -- a group with few restarts ------------------------------------------------------------------------------

    async def do_guest_open(
        self, nodes: Sequence[int], restart: str | None, order: str | None, budget: tuple[int, float],
        call_timeout: float, frail: int, hook_s: float | None,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"order": order} if order else {}
        if restart:
            options |= {"restart": restart, "max_restarts": budget[0], "restart_window": budget[1]}
        spec = fleet.Guest.create_group(frail) if hook_s is None else fleet.HookedGuest.create_group(frail, hook_s)
        group = spec.launch(
            self.cluster, NodePlacementStrategy(list(nodes)), name=fleet.GUEST, call_timeout=call_timeout, **options
        )
        guests = self.guests = Invitation(group, len(nodes), restart, *budget, call_timeout, frail)
        group.on_death(lambda death: subject.begin("driver", "guest_death", death.rank, death.pid, death.returns))
        crew.note_returns(group, fleet.GUEST)

        async def wait() -> None:
            with contextlib.suppress(Exception):
                await group
            guests.born_by = asyncio.get_running_loop().time()

        self.start("the launch of the guests", wait())

    async def do_guest_call(self, how: str, rank: int | None, size: int, seconds: float) -> None:
        guests = self.guests
        ranks = list(range(guests.size)) if rank is None else [rank]
        nonces = [next(self.nonces) for _ in range(len(ranks) * (3 if how == "crowd" else 1))]
        operation = subject.begin("driver", "guest_call", how, nonces, ranks)
        self.start(
            f"call {nonces} of guests ({how})", self.call_guests(operation, how, ranks, nonces, bytes(size), seconds)
        )

    async def call_guests(
        self, operation: Operation, how: str, ranks: list[int], nonces: list[int], content: bytes, seconds: float
    ) -> None:
        guests, loop = self.guests, asyncio.get_running_loop()
        view = guests.group if len(ranks) == guests.size else guests.group[ranks[0]]
        began = loop.time()
        if how == "each":
            await subject.follow(operation, view.answer(each(nonces), content, seconds), list)
        elif how in ("all", "later", "again", "beside"):
            methods = {"all": "answer", "later": "answer_later", "again": "answer_again", "beside": "stay_beside"}
            method = getattr(view, methods[how])
            await subject.follow(operation, method(nonces[0], content, seconds), list)
        elif how == "any":
            answer = view.any(in_flight=1).answer_again(nonces[0], content, seconds)
            await subject.follow(operation, answer, lambda value: [value])
        elif how == "crowd":
            pool = view.any(in_flight=1 if seconds else None)
            methods = (pool.answer_again, pool.answer_later)
            calls = [methods[nonce % 2](nonce, content, seconds) for nonce in nonces]
            await subject.follow(operation, asyncio.gather(*calls), list)
            with contextlib.suppress(Exception):  # the group may be closed by now
                await pool.answer_again(next(self.nonces), content, 0.0)
        elif how == "leave":
            staying = view.stay_beside(nonces[0], content, 3.0)
            await asyncio.sleep(seconds / 10)
            staying.cancel()
            await subject.follow(operation, staying)
            crew.excuse(operation, "ClosedError")
        elif how == "refuse":
            await subject.follow(operation, view.refuse(nonces[0], content, seconds))
        else:
            await subject.follow(operation, self.read_guests(view, nonces[0], content, seconds))
        crew.excuse(operation, *self.expected(how))
        took = loop.time() - max(began, began if guests.born_by is None else guests.born_by)
        if guests.call_timeout and guests.born_by is not None and how != "stream":
            most = guests.call_timeout + ANSWER_S
            if took > most and not self.node_died and not self.away_s:
                self.hung.append(Violation("deadline", f"{operation} took {took:.3g} s of {guests.call_timeout:g}"))

    def expected(self, how: str) -> list[str]:
        """Return the errors that a call of guests may have by what else the program does."""
        guests = self.guests
        closes = any(step.kind == "guest_close" for step in self.program.steps)
        dies = guests.deaths or guests.by_hand or any(step.kind == "guest_kill" for step in self.program.steps)
        may_die = how != "again" or not guests.lives_on or closes
        found = ["ClosedError"] if closes else []
        if how == "refuse" or guests.frail:
            found.append("LookupError")
        if guests.frail:
            found.append("WorkerDied")
        return [*found, "WorkerDied"] if dies and may_die else found

    async def read_guests(self, view: Any, nonce: int, content: bytes, seconds: float) -> None:
        numbers: dict[int, int] = {}
        async for rank, number in view.answers(nonce, content, seconds):
            assert number == numbers.get(rank, 0), f"rank {rank}: item {number}, not {numbers.get(rank, 0)}"
            numbers[rank] = number + 1
        assert set(numbers.values()) == {4}, f"items by rank: {numbers}"

    async def do_guest_talk(self, rank: int, guest: int) -> None:
        nonce = next(self.nonces)
        self.listen_to(rank, guest, nonce)
        self.start(f"guest {guest} talks to {rank}", self.talk(rank, guest, nonce))

    async def talk(self, rank: int, guest: int, nonce: int) -> None:
        """A group that is closed, or whose launch has failed, refuses the call itself."""
        await self.guests.group[guest].say(rank, nonce)

    async def do_guest_kill(self, rank: int) -> None:
        if self.sim.kill(fleet.GUEST, rank) and not self.guests.is_closed:
            self.guests.was_killed = True
            if self.guests.born_by is not None:
                self.guests.deaths.append(rank)

    async def do_guest_hooks(self, one: int, other: int) -> None:
        if not self.guests.is_closed:
            self.start(f"hooks for guest {one}, while {other} dies", self.die_in_hooks(one, other))

    async def die_in_hooks(self, one: int, other: int) -> None:
        """Hooks are told of both ranks, though the death of the second one ends those that run for the first one."""
        noted = len(subject.BOOK)
        for guest in (one, other):
            if not self.sim.kill(fleet.GUEST, guest):
                return
            self.guests.was_killed = True
            self.guests.deaths.append(guest)
            await asyncio.sleep(0.6)
        await asyncio.sleep(4.0)
        tellings = [each for each in subject.BOOK[noted:] if each.kind == "h_told" and each.facts[0] == fleet.GUEST]
        missing = {one, other} - {rank for each in tellings for rank in each.facts[2]}
        if missing and not self.guests.is_closed:
            self.hung.append(Violation("lost", f"nobody was told that guests {sorted(missing)} are back"))

    async def do_guest_meet(self, rank: int, other: int, victim: int) -> None:
        if not self.guests.is_closed:
            self.start(f"{rank} meets guests {other} and {victim}", self.meet_guests(rank, other, victim))

    async def meet_guests(self, rank: int, other: int, victim: int) -> None:
        """One that knows a guest only by its message finds others while that one is away, and hears its successor."""
        nonces = [next(self.nonces) for _ in range(3)]
        await self.talk(rank, victim, nonces[0])
        await asyncio.sleep(0.05)
        self.listen_to(rank, victim, nonces[0])
        await asyncio.sleep(0.02)
        if not self.sim.kill(fleet.GUEST, victim):  # it is away already, or its node is lost
            return
        self.guests.was_killed = True
        self.guests.deaths.append(victim)
        for guest, nonce in ((other, nonces[1]), (victim, nonces[2])):
            await asyncio.sleep(0.02)
            self.listen_to(rank, guest, nonce)
            self.start(f"guest {guest} talks to {rank}", self.talk(rank, guest, nonce))
        await asyncio.sleep(3.0)
        heard = [each for each in subject.BOOK if each.kind == "guest_talk" and each.facts[0] == nonces[2]]
        if not self.guests.is_closed:
            found = [each for each in heard if each.value == "WorkerDied"]
            self.hung += [Violation("death", f"{each}, and guest {victim} comes back") for each in found]

    def listen_to(self, rank: int, guest: int, nonce: int) -> None:
        self.script(f"{rank} listens to guest {guest}", (CREW, rank), "hear_guest", guest, nonce)

    async def do_guest_restart(self, rank: int) -> None:
        guests = self.guests
        if guests.restart and self.sim.find(fleet.GUEST, rank) is not None:
            guests.by_hand += 1
            self.start(f"a restart of guest {rank}", guests.group.restart(rank))

    async def do_guest_close(self) -> None:
        self.guests.is_closed = True
        self.start(
            "the close of the guests", subject.follow(subject.begin("driver", "guest_close"), self.guests.group.close())
        )

    async def do_pool_end(self, node: int) -> None:
        self.start("a pool that is asked, dies and is closed", self.end_pool(node))

    async def end_pool(self, node: int) -> None:
        """Calls of any rank wait for room, behind others and for ranks; a stream loses its rank, then its group."""
        members = fleet.Guest.create_group(0).launch(
            self.cluster, NodePlacementStrategy([0, node]), name="pool end", restart="rank", max_restarts=9
        )
        await members
        narrow, wide = members.any(in_flight=1), members.any()
        calls = [narrow.answer_later(nonce, torch.zeros(100_000), 0.3) for nonce in range(-9, -5)]
        calls.append(wide.answer_again(0, b"", 0.0))
        await self.look_at("why")
        await asyncio.gather(*calls)
        for rank in (0, 1):
            self.sim.kill("pool end", rank)
        await asyncio.sleep(0.05)
        call = wide.answer_again(0, b"", 0.0)
        await self.look_at("why")
        await call
        stream = aiter(wide.answers_again(5))
        assert [await anext(stream), await anext(stream)] == [0, 1]
        for rank in (0, 1):
            self.sim.kill("pool end", rank)
        await asyncio.sleep(0.05)
        await members.close()
        with contextlib.suppress(ClosedError, WorkerDied):
            async for number in stream:
                assert number in (2, 3), f"item {number} behind 1"
            raise AssertionError("a stream of a group that is closed has ended as if it were whole")

    # -- questions ----------------------------------------------------------------------------------------------

    async def do_look(self, what: str) -> None:
        self.start(f"a look at {what}", self.look_at(what))

    async def look_at(self, what: str) -> None:
        """An answer comes, whatever happens meanwhile."""
        try:
            async with asyncio.timeout(60):
                if what == "status":
                    await self.cluster.status()
                elif what == "why":
                    await self.cluster.why()
                else:
                    await self.look_at_queue()
        except TimeoutError:
            self.hung.append(Violation("hang", f"{what} is not told within a minute"))
        except Exception as error:
            if self.program.is_calm:
                self.hung.append(Violation("error", f"{what}: {type(error).__name__}: {error}"))

    async def look_at_queue(self) -> None:
        for queue in self.queues.values():
            size = await queue.channel.qsize()
            is_full, shown = await queue.channel.full(), await queue.channel.peek_all()
            most = queue.maxsize
            if self.program.is_calm and most and not max(size, len(shown)) <= most:
                self.hung.append(Violation("bound", f"{size} items, {len(shown)} shown of {most}, full: {is_full}"))

    async def do_look_nobody(self, rank: int) -> None:
        self.script(f"{rank} listens to nobody", (CREW, rank), "hear_nobody")

    async def do_nest_orphaned(self, owner: int, listener: int, node: int) -> None:
        if owner != listener:
            self.start(f"a group of rank {owner}'s that it leaves", self.orphan(owner, listener, node))

    async def orphan(self, owner: int, listener: int, node: int) -> None:
        """One that waits for a rank to be back hears that the rank's owner has ended."""
        nonces = [next(self.nonces), next(self.nonces)]
        self.script(f"rank {owner} has a group", (CREW, owner), "rear", listener, nonces[0], node)
        for nonce in nonces:
            self.script(f"{listener} listens to it", (CREW, listener), "hear_guest", 0, nonce, fleet.BROOD)
            await asyncio.sleep(5.0 if nonce == nonces[0] else 0.03)
            if nonce == nonces[0] and not self.sim.kill(fleet.BROOD, 0):  # there is no such group
                return
            await asyncio.sleep(0.02)
        if self.sim.kill(CREW, owner):
            self.killed.add(f"{CREW}:{owner}")
            subject.begin("fault", "killed", f"{CREW}:{owner}")
            await asyncio.sleep(20.0)
            heard = [each for each in subject.BOOK if each.kind == "guest_talk" and each.facts[0] == nonces[1]]
            self.hung += [Violation("death", f"{each}, whose owner has died") for each in heard if not each.ended]

    async def do_nest(self, rank: int, node: int, seconds: float) -> None:
        self.start(f"a group of rank {rank}'s own", self.have_nest(rank, node, seconds))

    async def have_nest(self, rank: int, node: int, seconds: float) -> None:
        """It ends with the process that has launched it."""
        with contextlib.suppress(Exception):
            await self.groups[CREW][rank].nest(next(self.nonces), node, seconds)
        await asyncio.sleep(60)
        if self.sim.find(fleet.NEST, 0) is not None and not self.node_died:
            self.hung.append(Violation("left", f"the group of rank {rank} is there, and its rank has left it"))

    async def do_look_ports(self, rank: int, most: int | None) -> None:
        operation = subject.begin("driver", "port", rank)
        work = subject.follow(operation, self.groups[CREW][rank].find_port(most), lambda ports: ports[0])
        self.start(f"a port for rank {rank}", work)
