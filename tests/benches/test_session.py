"""Long-lived contestants of a bench session."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from benches import contestant, session
from benches.contestant import Contestant, ContestantError, ended_in_order
from benches.measure import AGAINST, BEST, LIMIT, OURS, Case, Target
from benches.options import Options, parse
from benches.session import Measurement, Standing

OPTIONS = Options(peers=(), peers_dir=Path(), rounds=2, quick=True, loop="asyncio", only=())


class Fake:
    """Fails at the works of which it is told; notes what happens to it."""

    def __init__(self, log: list[str], fails: Sequence[str] = ()) -> None:
        self._log = log
        self._fails = fails
        log.append("start")

    def ask(self, work: str, **arguments: Any) -> list[float]:
        self._log.append(work)
        if work in self._fails:
            raise ContestantError(f"no {work}")
        return [float(arguments.get("count", 1))]

    def close(self, *, at_once: bool = False) -> None:
        self._log.append("kill" if at_once else "close")


def starting(log: list[str], *fails: str) -> Callable[[], Contestant]:
    return lambda: cast(Contestant, Fake(log, fails))


def test_a_contestant_starts_when_it_is_first_needed() -> None:
    log: list[str] = []
    with Standing(starting(log), ("cold", {})) as standing:
        assert log == []
        standing.ask("call")
        standing.ask("call")
    assert log == ["start", "cold", "call", "call", "close"]


def test_a_bench_that_is_ended_does_not_wait_for_what_its_contestants_are_at() -> None:
    log: list[str] = []

    def bench() -> None:
        with ended_in_order(), Standing(starting(log)) as standing:
            standing.ask("call")
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        bench()
    assert log == ["start", "call", "kill"]


def test_a_real_one_is_killed_in_the_middle_of_its_work() -> None:
    limits = contestant.limits()
    stdin = limits._process.stdin
    assert stdin is not None
    stdin.write(json.dumps({"work": "copies", "size": 1 << 20, "processes": 1, "count": 1 << 30}) + "\n")
    stdin.flush()
    limits.close(at_once=True)
    assert limits._process.returncode == -signal.SIGKILL


def test_a_contestant_that_failed_at_a_work_starts_anew_for_the_next() -> None:
    log: list[str] = []
    with Standing(starting(log, "argument"), ("cold", {})) as standing:
        with pytest.raises(ContestantError, match="no argument"):
            standing.ask("argument")
        standing.ask("call")
    assert log == ["start", "cold", "argument", "close", "start", "cold", "call", "close"]


def test_a_contestant_that_cannot_start_is_not_tried_twice() -> None:
    log: list[str] = []
    with Standing(starting(log, "cold"), ("cold", {})) as standing:
        for _ in range(2):
            with pytest.raises(ContestantError, match="no cold"):
                standing.ask("call")
    assert log == ["start", "cold", "close"]


def test_a_peer_that_fails_has_no_samples_and_ours_must_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    with Standing(starting([], "call")) as standing:
        assert session.samples("ray", standing, "call", {}) == []
        assert capsys.readouterr().err == "no call\n"
        for name in (OURS, LIMIT):
            with pytest.raises(ContestantError, match="no call"):
                session.samples(name, standing, "call", {})


def test_everybody_does_its_own_job() -> None:
    case = Case("send", "row", "s", limit="a copy", beside={"tcp": "a raw socket"})
    measurement = Measurement(
        case, "swap", {"count": 9, "size": 8}, ("copy", {"size": 8}), {"tcp": ("socket", {})}, ["ray"], peer_count=2
    )
    assert measurement.job(OURS) == (OURS, ("swap", {"count": 9, "size": 8}))
    assert measurement.job("ray") == ("ray", ("swap", {"count": 2, "size": 8}))
    assert measurement.job(LIMIT) == (LIMIT, ("copy", {"size": 8}))
    assert measurement.job("tcp") == (LIMIT, ("socket", {}))
    assert measurement.job("xoscar") is None


def test_rounds_hold_those_that_could_do_it() -> None:
    case = Case("send", "row", "s", limit="a copy", beside={"tcp": "a raw socket"})
    measurement = Measurement(case, "swap", {"count": 9}, ("copy", {}), {"tcp": ("socket", {})}, peer_count=2)
    logs: dict[str, list[str]] = {OURS: [], "ray": [], LIMIT: []}
    standing = {
        OURS: Standing(starting(logs[OURS])),
        "ray": Standing(starting(logs["ray"], "swap")),
        LIMIT: Standing(starting(logs[LIMIT])),
    }
    found = session.run([measurement], standing, OPTIONS)
    assert found == {"row": [{OURS: [9.0], LIMIT: [1.0], "tcp": [1.0]}] * 2}
    assert logs["ray"] == ["start", "swap", "close"]
    assert logs[LIMIT] == ["start", "copy", "socket", "copy", "socket", "socket", "copy"]


def test_another_version_is_measured_like_ours_with_the_packages_of_its_checkout(tmp_path: Path) -> None:
    for package in ("rlinf_async", "launcher"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    script = tmp_path / "contestant.py"
    script.write_text(
        "import json, sys, rlinf_async, rlinf_launcher\n"
        "from pathlib import Path\n"
        "for line in sys.stdin:\n"
        "    found = [str(Path(each.__file__).resolve()) for each in (rlinf_async, rlinf_launcher)]\n"
        "    print(json.dumps({'samples': found}), flush=True)\n"
    )
    options = parse("", rounds=9, arguments=["--against", str(tmp_path)])
    assert (options.rounds, options.beside().peers) == (20, (AGAINST,))
    with contestant.ours(script=str(script), checkout=options.checkout(AGAINST)) as other:
        found = other.ask("where")
    assert found == [str(tmp_path / package / "__init__.py") for package in ("rlinf_async", "launcher")]
    case = Case("b", "c", "us", targets=[Target(0.8, BEST)])
    row = case.row([{OURS: [2.0], AGAINST: [1.0]}, {OURS: [3.0], AGAINST: [2.0]}, {OURS: [1.0], AGAINST: [1.0]}])
    assert row["against"] == {"median": 1.0, "ratio": 1.5}
    assert (row["peers"], row["met"], row["ahead"]) == ({}, None, None)
    assert Measurement(case, "call", {"count": 5}, peers=(), peer_count=1).job(AGAINST) == (
        AGAINST,
        ("call", {"count": 5}),
    )
