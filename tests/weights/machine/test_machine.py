"""Random programs of a trainer and followers, each in three worlds: no promise about weights is broken."""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.weights.machine.player import Act, Player
from tests.weights.machine.worlds import FOLLOWERS, World, in_a_process, over_processes, simulated

TIMES = int(os.environ.get("RLINF_WEIGHT_PROGRAMS", 1))
"""How many times as many programs."""

number = st.integers(0, FOLLOWERS - 1)
pause = st.sampled_from([0.0, 0.0, 0.0, 0.002, 0.01, 1.0, 7.0])


class Programs(RuleBasedStateMachine):
    """Writes a program, act by act, and plays it in a world at the end."""

    world: ClassVar[Any]
    options: ClassVar[dict[str, Any]]

    @initialize(
        apply=st.sampled_from(["copy", "map"]),
        verify=st.sampled_from(["off", "off", "sha256"]),
        behind=st.sampled_from([0, 1, 2]),
        size=st.sampled_from([40, 40, 300_000]),
        dtype=st.sampled_from(["float32", "float32", "bfloat16"]),
        nodes=st.sampled_from([[0, 0, 1], [1, 1, 2], [0, 1, 2]]),
        has_small_limits=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(self, dtype: str, **how: Any) -> None:
        self.how = {**how, "dtypes": ["float32", "float32", dtype], **self.options}
        self.acts: list[Act] = []
        self.following: set[int] = set()
        self.misfits: set[int] = set()
        self.reading: set[int] = set()
        self.is_open = True

    def teardown(self) -> None:
        if getattr(self, "acts", None):
            self.world(self.how, self._play)

    async def _play(self, world: World) -> None:
        await Player(world, self.how).play(self.acts)

    def act(self, name: str, *arguments: Any, pause: float) -> None:
        self.acts.append((name, arguments, pause))

    def one(self, number: int) -> int:
        return sorted(self.following)[number % len(self.following)]

    # -- followers ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.following) < FOLLOWERS)
    @rule(number=number, pause=pause)
    def add(self, number: int, pause: float) -> None:
        away = [who for who in range(FOLLOWERS) if who not in self.following]
        self.act("add", away[number % len(away)], pause=pause)
        self.following.add(away[number % len(away)])

    @precondition(lambda self: self.following)
    @rule(number=number, pause=pause)
    def remove(self, number: int, pause: float) -> None:
        who = self.one(number)
        self.following.remove(who)
        self.act("remove", who, pause=pause)

    @precondition(lambda self: self.following)
    @rule(number=number, pause=pause)
    def refuse_or_mend(self, number: int, pause: float) -> None:
        who = self.one(number)
        self.act("mend" if who in self.misfits else "refuse", who, pause=pause)
        self.misfits ^= {who}

    @precondition(lambda self: self.following)
    @rule(number=number, pause=pause)
    def read_or_release(self, number: int, pause: float) -> None:
        who = self.one(number)
        self.act("release" if who in self.reading else "read", who, pause=pause)
        self.reading ^= {who}

    @precondition(lambda self: self.following)
    @rule(number=number, pause=pause)
    def keep(self, number: int, pause: float) -> None:
        who = self.one(number)
        self.act("keep", who, pause=pause)

    @precondition(lambda self: self.following)
    @rule(number=number, pause=pause)
    def die(self, number: int, pause: float) -> None:
        who = self.one(number)
        for of in self.following, self.misfits, self.reading:
            of.discard(who)
        self.act("die", who, pause=pause)

    @precondition(lambda self: self.following)
    @rule(number=number, seconds=st.sampled_from([0.3, 3.0, 11.0]), pause=pause)
    def stop(self, number: int, seconds: float, pause: float) -> None:
        who = self.one(number)
        self.act("stop", who, seconds, pause=pause)

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.act("wait", pause=seconds)

    # -- the trainer ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.is_open)
    @rule(count=st.sampled_from([1, 1, 2, 4]), seconds=st.sampled_from([1.0, 20.0]), pause=pause)
    def publish(self, count: int, seconds: float, pause: float) -> None:
        self.act("publish", count, seconds, pause=pause)

    @precondition(lambda self: self.is_open)
    @rule(count=st.sampled_from([1, 3]), pause=pause)
    def publish_to_be_delivered(self, count: int, pause: float) -> None:
        self.act("publish", count, 20.0, pause=pause)
        self.act("deliver", 20.0, pause=pause)

    @precondition(lambda self: self.is_open)
    @rule(pause=pause)
    def cancel(self, pause: float) -> None:
        self.act("cancel", pause=pause)

    @precondition(lambda self: self.is_open)
    @rule(how=st.sampled_from(["left", "failed", "killed"]), pause=pause)
    def close(self, how: str, pause: float) -> None:
        """Everybody else follows anew, once there is another one."""
        self.is_open = False
        self.act("trainer_dies", pause=pause) if how == "killed" else self.act("close", how == "failed", pause=pause)

    @precondition(lambda self: not self.is_open)
    @rule(pause=pause)
    def restart(self, pause: float) -> None:
        self.is_open = True
        self.act("restart", pause=pause)
        for who in sorted(self.following):
            self.act("add", who, pause=0.0)


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
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_programs_within_a_process() -> None:
    programs(in_a_process, 60, 25, ack_timeout=0.5, rest_s=10.0, is_exact=False, counts_memory=True)


def test_programs_in_a_simulated_cluster() -> None:
    programs(simulated, 40, 25, ack_timeout=60.0, rest_s=400.0, is_exact=True, counts_memory=False)


async def test_a_program_over_processes() -> None:
    how = {"apply": "map", "verify": "off", "behind": 2, "size": 300_000, "ack_timeout": 20.0, "rest_s": 60.0}
    how |= {"dtypes": ["float32", "float32", "bfloat16"], "is_exact": False, "counts_memory": True}
    acts: list[Act] = [
        ("add", (0,), 0.0),
        ("add", (1,), 0.0),
        ("publish", (3, 20.0), 1.0),
        ("keep", (0,), 0.0),
        ("refuse", (1,), 0.0),
        ("publish", (2, 20.0), 1.0),
        ("cancel", (), 0.0),
        ("add", (2,), 1.0),
        ("read", (2,), 0.0),
        ("stop", (0, 11.0), 0.0),
        ("publish", (4, 20.0), 3.0),
        ("die", (1,), 0.0),
        ("publish", (2, 20.0), 1.0),
        ("remove", (2,), 1.0),
        ("close", (True,), 1.0),
        ("restart", (), 0.0),
        ("add", (0,), 0.0),
        ("publish", (2, 20.0), 0.0),
        ("trainer_dies", (), 0.0),
    ]
    async with over_processes() as world:
        await Player(world, how).play(acts)
