"""Random programs of a trainer and followers, each in three worlds: no promise about weights is broken."""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.weights.machine.player import Act, Player
from tests.weights.machine.worlds import FOLLOWERS, World, in_a_process, over_processes, simulated

TIMES = int(os.environ.get("RLINF_WEIGHT_PROGRAMS", 1))
"""How many times as many programs."""

PAUSES_S = [0.0, 0.0, 0.002, 0.01, 1.0, 1.0, 7.0]

OF_FOLLOWERS = ["remove", "die", "refuse", "read", "read", "keep", "stop", "hand"]
OF_TRAINERS = ["publish", "publish", "publish_patiently", "publish_many", "publish_many"]
OF_TRAINERS += ["deliver", "cancel", "cancel", "close"]
TURNS = 8
"""Turns of the loop that the steps of a send take."""
RULES = ["add", "add", "late", *OF_FOLLOWERS, *OF_TRAINERS]


class Programs(RuleBasedStateMachine):
    """Writes a program, act by act, and plays it in a world at the end."""

    world: ClassVar[Any]
    options: ClassVar[dict[str, Any]]

    @initialize(
        apply=st.sampled_from(["copy", "map"]),
        verify=st.sampled_from(["off", "off", "sha256"]),
        behind=st.sampled_from([0, 1, 2]),
        size=st.sampled_from([40, 300_000]),
        dtype=st.sampled_from(["float32", "float32", "bfloat16"]),
        nodes=st.sampled_from([[0, 0, 1], [1, 1, 2], [0, 1, 2], [0, 0, 0]]),
        has_small_limits=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(self, dtype: str, seed: int, **how: Any) -> None:
        self.how = {**how, "seed": seed, "dtypes": ["float32", "float32", dtype], **self.options}
        self.acts: list[Act] = []
        self.following: set[int] = set()
        self.misfits: set[int] = set()
        self.reading: set[int] = set()
        self.is_open = True
        for who in range(seed % FOLLOWERS + 1):
            self.following.add(who)
            self._act(0.0, "add", who)
        self._act(1.0, "publish", 2, 20.0)

    def teardown(self) -> None:
        if getattr(self, "acts", None):
            self.world(self.how, self._play)

    async def _play(self, world: World) -> None:
        await Player(world, self.how).play(self.acts)

    @rule(what=st.sampled_from(RULES), number=st.integers(0, FOLLOWERS - 1), pause=st.sampled_from(PAUSES_S))
    def step(self, what: str, number: int, pause: float) -> None:
        """One of the rules.  As rules of the machine, hypothesis would switch most of them off in most programs."""
        if what in [*OF_TRAINERS, "hand"] and not self.is_open:
            what = "restart"
        elif what in OF_FOLLOWERS and not self.following:
            what = "add"
        getattr(self, what)(number, pause)

    def _act(self, pause: float, name: str, *arguments: Any) -> None:
        self.acts.append((name, arguments, pause))

    # -- followers ------------------------------------------------------------------------------------------------

    def _one(self, number: int) -> int:
        return sorted(self.following)[number % len(self.following)]

    def add(self, number: int, pause: float) -> None:
        """Late ones among them."""
        away = [who for who in range(FOLLOWERS) if who not in self.following]
        who = away[number % len(away)] if away else number
        self._act(pause, "add", who)
        self.following.add(who)

    def remove(self, number: int, pause: float) -> None:
        """One that refuses comes back so, and refuses the first version."""
        who = self._one(number)
        self.following.discard(who)
        self.reading.discard(who)
        self._act(pause, "remove", who)

    def die(self, number: int, pause: float) -> None:
        who = self._one(number)
        for of in self.following, self.misfits, self.reading:
            of.discard(who)
        self._act(pause, "die", who)

    def refuse(self, number: int, pause: float) -> None:
        """One that refuses mends; another one refuses what comes next, or the first version of all."""
        who = self._one(number)
        self._act(pause, "mend" if who in self.misfits else "refuse", who)
        self.misfits ^= {who}
        if who in self.misfits and number:
            self._act(0.0, "remove", who)
            self._act(pause, "add", who)

    def read(self, number: int, pause: float) -> None:
        """One that reads releases what it reads."""
        who = self._one(number)
        self._act(pause, "release" if who in self.reading else "read", who)
        self.reading ^= {who}

    def keep(self, number: int, pause: float) -> None:
        self._act(pause, "keep", self._one(number))

    def stop(self, number: int, pause: float) -> None:
        self._act(pause, "stop", self._one(number), 3.0)

    # -- the trainer ------------------------------------------------------------------------------------------------

    def publish(self, number: int, pause: float) -> None:
        self._act(pause, "publish", 1, 5.0)

    def publish_patiently(self, number: int, pause: float) -> None:
        self._act(pause, "publish_patiently")

    def hand(self, number: int, pause: float) -> None:
        """By a call and over the link, in an order that both ways may change."""
        self._act(pause, "hand", self._one(number), len(self.acts) % TURNS / 2, bool(number % 2))

    def publish_many(self, number: int, pause: float) -> None:
        """More than followers may be behind; and the receivers have little time."""
        self._act(pause, "publish", 2 + 2 * number, 1.0)

    def deliver(self, number: int, pause: float) -> None:
        self._act(pause, "deliver", 5.0 if number else None)

    def cancel(self, number: int, pause: float) -> None:
        """What was begun last, or a send that is begun now, at a moment at which it may be packed."""
        self._act(pause, "cancel", len(self.acts) % TURNS, bool(number))

    def close(self, number: int, pause: float) -> None:
        self.is_open = False
        self._act(pause, *(("trainer_dies",) if number == 2 else ("close", bool(number))))

    def restart(self, number: int, pause: float) -> None:
        """Begin anew; who followed the one before follows this one."""
        self.is_open = True
        self._act(pause, "restart")
        for who in sorted(self.following):
            self._act(0.0, "add", who)

    def late(self, number: int, pause: float) -> None:
        """Time passes, with it perhaps a deadline."""
        self._act(30.0 if number == 2 else 1.0, "wait")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "rlinf_async")


def programs(world: Any, count: int, steps: int, **options: Any) -> None:
    kind = type("Machine", (Programs,), {"world": staticmethod(world), "options": options})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=count * TIMES,
            derandomize=TIMES == 1,
            database=None,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate],  # a shorter program may pass, where threads take other turns
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_programs_within_a_process() -> None:
    programs(in_a_process, 40, 25, ack_timeout=0.5, rest_s=10.0, is_exact=False, counts_memory=True)


def test_programs_in_a_simulated_cluster() -> None:
    programs(simulated, 10, 25, ack_timeout=600.0, rest_s=300.0, is_exact=True, counts_memory=False)


@pytest.mark.slow
async def test_a_program_over_processes() -> None:
    how = {"apply": "map", "verify": "off", "behind": 2, "size": 300_000, "ack_timeout": 20.0, "rest_s": 60.0}
    how |= {"dtypes": ["float32", "float32", "bfloat16"], "is_exact": False, "counts_memory": True, "nodes": []}
    acts: list[Act] = [
        ("add", (0,), 0.0),
        ("add", (1,), 0.0),
        ("publish", (3, 5.0), 1.0),
        ("keep", (0,), 0.0),
        ("refuse", (1,), 0.0),
        ("publish", (2, 5.0), 1.0),
        ("cancel", (3, True), 0.0),
        ("add", (2,), 1.0),
        ("read", (2,), 0.0),
        ("stop", (0, 11.0), 0.0),
        ("publish", (4, 20.0), 3.0),
        ("die", (1,), 0.0),
        ("publish", (2, 5.0), 1.0),
        ("remove", (2,), 1.0),
        ("close", (True,), 1.0),
        ("restart", (), 0.0),
        ("add", (0,), 0.0),
        ("publish", (2, 20.0), 0.0),
        ("trainer_dies", (), 0.0),
    ]
    async with over_processes() as world:
        await Player(world, how).play(acts)
