"""Durable experiences: the next run goes on with what a killed one has left; locked, strange and full files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, ConfigError, Experience
from tests.experience import killed_runs

pytestmark = pytest.mark.shared_cluster


@pytest.mark.slow
def test_what_killed_runs_had_accepted_is_there_and_nothing_is_taken_twice(tmp_path: Path) -> None:
    journal = killed_runs.kill_runs(3, tmp_path, seed=5)
    assert len(journal.put) > 20
    asyncio.run(killed_runs.check(tmp_path / "experience.db", journal))


async def test_another_run_goes_on_with_samples_groups_leases_version_and_ledger(tmp_path: Path) -> None:
    file = tmp_path / "experience.db"
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await Experience.create("e", group=2, max_staleness=0, durable=file, cluster=cluster)
        await experience.set_version(3)
        for version, sample in (
            (1, "stale"),
            (1, "stale"),
            (3, "taken"),
            (3, "taken"),
            (3, "leased"),
            (3, b"-" * 200_000),
        ):
            await experience.put(sample, version=version, group="g")
        async with experience.take():
            pass
        await experience.put("half", version=3, group="h", key=7)
        block = experience.take()
        await block.__aenter__()
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await Experience.create("e", group=2, max_staleness=0, durable=file, cluster=cluster)
        stats = await experience.stats()
        assert (stats.put, stats.taken, stats.present, stats.version, stats.incomplete) == (7, 2, 3, 3, 1)
        assert sum(stats.dropped.values()) == 2
        await experience.put("other half", version=3, group="h", key=7)
        async with experience.take(2, key=7) as batch:
            assert batch == [["leased", b"-" * 200_000], ["half", "other half"]]
    left = sqlite3.connect(file)
    assert left.execute("SELECT count(*) FROM samples").fetchone() == (0,)
    left.close()


async def test_a_file_has_one_experience_at_a_time_and_is_one(tmp_path: Path) -> None:
    file, text = tmp_path / "experience.db", tmp_path / "text"
    text.write_text("no database, but a text that is long enough to be looked at" * 100)
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        first = await Experience.create("first", durable=file, cluster=cluster)
        for name, durable, words in (
            (
                "second",
                file,
                "it is open already, in another run or in this one: close that experience, or give another",
            ),
            ("third", text, "it is no file of an experience: give the path of a new file"),
            ("fourth", tmp_path, "it is a folder: give the path of a file"),
        ):
            with pytest.raises(ConfigError) as caught:
                await Experience.create(name, durable=durable, cluster=cluster)
            assert f"experience '{name}' on node 0 cannot use durable='{durable}'" in str(caught.value)
            assert words in str(caught.value)
        again = await Experience.create("first", durable=file, cluster=cluster)
        await again.put("one", version=0)
        assert (await first.stats()).present == 1
        await first.aclose(discard=True)
        await Experience.create("fifth", durable=file, cluster=cluster)


async def test_a_second_create_of_a_name_leaves_its_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "experience.db"
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await Experience.create("e", group=2, durable=file, cluster=cluster)
        await experience.put("half", version=0)
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        other = await Experience.create("e", cluster=cluster)
        experience = await Experience.create("e", group=2, durable=file, cluster=cluster)  # which is the other one
        assert (await experience.stats()).put == 0
        await other.aclose()
        experience = await Experience.create("e", group=2, durable=file, cluster=cluster)
        assert (await experience.stats()).present == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid():
        pytest.skip("mounts a file system of 1 MiB: run the tests as root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_full_disk_is_an_error_of_the_put_and_ends_nothing(small_disk: Path) -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        experience = await Experience.create("e", durable=small_disk / "experience.db", cluster=cluster)
        await experience.put("small", version=0)
        with pytest.raises(
            OSError, match=r"'e' on node 0 could not write to .*full; make room there; the sample was not put"
        ):
            await experience.put(b"-" * 2_000_000, version=0)
        await experience.put("small too", version=0)
        async with experience.take(2) as batch:
            assert batch.items == ["small", "small too"]
