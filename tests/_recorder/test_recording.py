"""Flight recorder of real processes: rings beside the logs, which outlive kills and hold what was under way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, WorkerDied
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind, Phase
from rlinf_async._recorder.state.ring_contents import RingContents, RingEvent


class Player(Worker):
    async def play(self, rounds: int) -> int:
        other = 1 - self._rank
        for number in range(rounds):
            with self.worker_timer("round"):
                send = self.send(number, "players", other, async_op=True)
                await self.recv("players", other)
                await send
        return os.getpid()

    async def forever(self) -> None:
        await self.recv("players", 1 - self._rank)

    def fork(self) -> bool:
        child = os.fork()
        if child == 0:
            os._exit(int(recording.ring is not None))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and recording.ring is not None


def rings(cluster: Cluster) -> dict[str, RingContents]:
    found = [RingContents.read(path.read_bytes()) for path in Path(cluster.log_dir, "recorder").glob("*.ring")]
    return {contents.identity["process"]: contents for contents in found}


def begun(contents: RingContents) -> list[tuple[EventKind, str]]:
    return [(event.kind, event.name) for event in contents.events if event.phase is Phase.BEGIN]


def still_open(contents: RingContents) -> list[RingEvent]:
    ended = {event.operation for event in contents.events if event.phase in (Phase.END, Phase.FAILED)}
    return [event for event in contents.events if event.phase is Phase.BEGIN and event.operation not in ended]


async def test_calls_messages_channels_and_timers_are_recorded_and_a_killed_rank_leaves_what_it_was_at() -> None:
    async with Cluster() as cluster:
        players = Player.create_group().launch(cluster, name="players", placement=NodePlacementStrategy([0, 0]))
        pids = await players.play(3)
        channel = Channel.create("episodes")
        await channel.put("x")
        await channel.get()
        assert await players.fork() == [True, True]
        hanging = players.forever()
        while not all(still_open(each) for name, each in rings(cluster).items() if name != "driver"):
            await asyncio.to_thread(lambda: None)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await hanging
        found = rings(cluster)
        assert found.keys() == {"driver", "players:0", "players:1"}
        killed = found["players:1"]
        assert killed.identity["pid"] == pids[1]
        assert [(event.kind, event.name) for event in still_open(killed)] == [
            (EventKind.SERVE, "forever"),
            (EventKind.RECV, "recv players:0"),
        ]
        served = begun(killed)
        assert served.count((EventKind.SPAN, "round")) == served.count((EventKind.SEND, "send players:0")) == 3
        assert (EventKind.SERVE, "play") in served
        driver = begun(found["driver"])
        expected = [(EventKind.CALL, "players.play"), (EventKind.PUT, "episodes"), (EventKind.GET, "episodes")]
        assert [event for event in driver if event in expected] == expected
        failed = [event.operation for event in found["driver"].events if event.phase is Phase.FAILED]
        calls = {event.operation: event.name for event in found["driver"].events if event.kind is EventKind.CALL}
        assert [calls[operation] for operation in failed] == ["players.forever"]
    assert recording.ring is None


async def test_a_setting_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_RECORDER_EVENTS", "0")
    async with Cluster() as cluster:
        await Player.create_group().launch(cluster, name="players", placement=NodePlacementStrategy([0, 0])).play(1)
        assert rings(cluster) == {}


def test_a_ring_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    facts = {"process": "x", "endpoint": 1}
    recording.attach(None, str(tmp_path / "no such directory"), facts)
    assert recording.ring is None
    (tmp_path / "recorder" / "1.ring").mkdir(parents=True)
    recording.attach(None, str(tmp_path), facts)
    assert recording.ring is None


def test_the_ring_of_an_earlier_run_in_the_same_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder" / "1.ring").write_text("an earlier run's")
    owner = object()
    recording.attach(owner, str(tmp_path), {"process": "x", "endpoint": 1})
    recording.detach(owner)
    assert RingContents.read((tmp_path / "recorder" / "1.ring").read_bytes()).identity["process"] == "x"


def test_only_the_owner_detaches_and_the_first_of_two_counts(tmp_path: Path) -> None:
    first, second = object(), object()
    recording.attach(first, str(tmp_path), {"process": "x", "endpoint": 1})
    ring = recording.ring
    assert ring is not None
    recording.attach(second, str(tmp_path), {"process": "x", "endpoint": 2})
    recording.detach(second)
    assert recording.ring is ring
    recording.detach(first)
    assert recording.ring is None
    assert [path.name for path in (tmp_path / "recorder").iterdir()] == ["1.ring"]


@pytest.mark.parametrize("first", ["ring", "log"])
def test_a_ring_and_a_span_log_of_two_clusters_come_and_go_without_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    def record() -> tuple[bool, int, int]:
        """Records an operation: whether it is admitted; how many the ring and the log have of it."""
        before = (len(events()), written())
        if is_admitted := recording.admits():
            recording.end(recording.begin(EventKind.PUT, "obs"))
        return is_admitted, len(events()) - before[0], int(written() > before[1])

    def events() -> list[RingEvent]:
        return RingContents.read((tmp_path / "recorder" / "1.ring").read_bytes()).events

    def written() -> int:
        return int.from_bytes((tmp_path / "recorder" / "2.spans").read_bytes()[4096:4104], "little")

    recording.attach("a", str(tmp_path), {"run": "untraced", "endpoint": 1})
    recording.trace("b", str(tmp_path), {"run": "traced", "endpoint": 2})
    recording.trace("c", str(tmp_path), {"run": "another", "endpoint": 3})
    try:
        assert "its own spans are in the trace of traced" in caplog.text
        assert record() == (True, 2, 1)
        recording.detach("c")
        recording.detach("a" if first == "ring" else "b")
        assert record() == ((True, 0, 1) if first == "ring" else (True, 2, 0))
    finally:
        recording._forget()
    assert record() == (False, 0, 0)
