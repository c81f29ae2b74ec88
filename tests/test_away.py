"""Ranks that are coming back: the same word in the group, in ``rlinf-ctl status`` and in metrics; calls beside them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Any

import pytest

from rlinf_async import Cluster, ConfigError, NodePlacementStrategy, Restart, WorkerDied, WorkerGroup
from rlinf_launcher.cli.control import main
from tests._support.mortal_workers import Mortal
from tests.test_metrics import fetch

TWO = NodePlacementStrategy([0, 0])


async def test_a_rank_that_is_coming_back_is_away_in_the_group_in_status_and_in_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Cluster(log_to_driver=False, metrics="127.0.0.1:0") as cluster:
        words = ["--run-dir", os.environ["XDG_RUNTIME_DIR"], "--run", cluster.run_id, "status"]
        group = Mortal.create_group().launch(cluster, TWO, "mortals", restart="rank", max_restarts=50, order="rank")
        died, back = asyncio.Queue[WorkerDied](), asyncio.Queue[Restart]()
        group.on_death(died.put_nowait)
        group.on_restart(back.put_nowait)
        for times in range(6):  # until its pause is 3.2 s
            os.kill((await group[1].who())[0][2], signal.SIGKILL)
            assert (await died.get()).returns
            if times < 5:
                assert (await back.get()).ranks == (1,)
        waiting = group.who()
        assert (await waiting[0])[0] == 0
        assert group.away == [1]
        assert await asyncio.to_thread(main, words) == 0
        told = capsys.readouterr().out
        assert "\naway, coming back: mortals:1\n" in told
        assert re.search(r"mortals:1 .* ended: was killed by SIGKILL, is away and started again", told)
        text = await asyncio.to_thread(fetch, cluster.metrics_address)
        assert re.search(r'rlinf_ranks_away{.*group="mortals".*} 1.0', text)
        assert re.search(r'rlinf_ranks{.*group="mortals".*} 1.0', text)
        assert not waiting.done()
        assert [restarts for _, restarts, _ in await waiting] == [0, 6]
        assert (await back.get()).ranks == (1,)
        assert group.away == []


@pytest.mark.slow
async def test_a_death_is_told_without_restarts_too_and_bad_callbacks_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Cluster(log_to_driver=False) as cluster:
        group = Mortal.create_group().launch(cluster, TWO, "mortals")
        told = asyncio.Queue[WorkerDied]()
        group.on_death(lambda died: 1 / 0)
        group.on_death(told.put_nowait)
        os.kill((await group[1].who())[0][2], signal.SIGKILL)
        died = await told.get()
        assert (died.rank, died.signal, died.returns, group.away) == (1, "SIGKILL", False, [])
        assert "a callback of on_death() of group 'mortals' failed" in caplog.text
        for register in (group.on_death, group.on_restart):
            with pytest.raises(TypeError, match=r"on_\w+\(\) takes a function to call, got 3"):
                register(3)  # type: ignore[arg-type]
        found: Any = await WorkerGroup.from_group_name(Mortal, "mortals", cluster=cluster)
        for use in (lambda: found.away, lambda: found.on_death(print), lambda: found.on_restart(print)):
            with pytest.raises(ConfigError, match="of group 'mortals' is for the process that has launched the group"):
                use()
