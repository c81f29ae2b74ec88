"""Exit code of runs with unobserved rank failures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from rlinf_launcher.control.bundle_file import read_bundle

CHECKOUT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, os, signal
from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, Worker, WorkerDied

class Fragile(Worker):
    def fail(self):
        raise ValueError("rank says no")

    def hello(self):
        return self._rank

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    async def wait_for_ever(self):
        await asyncio.Event().wait()

    async def stream(self):
        yield 1
        raise ValueError("stream says no")

if __name__ == "__main__":
    with Cluster() as cluster:
        group = Fragile.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="fragile").wait_ready()
{body}
"""


def launch(folder: Path, body: str, *flags: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(body=indent(dedent(body), " " * 8)))
    command = [sys.executable, "-m", "rlinf_launcher", *flags, str(script)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_for_machines_the_exit_event_has_the_launchers_code_and_the_scripts_also_when_quiet(tmp_path: Path) -> None:
    done = launch(tmp_path, "group.fail(); group.hello().wait(); group.hello().wait()", "-q", "--json", "--tee", "none")
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["bundle", "error", "exit"]
    assert Path(events[0]["path"]).is_file()
    assert events[-1] == {"event": "exit", "script": str(tmp_path / "train.py"), "code": 1, "script_code": 0}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "group.fail(); stream = group.stream(); group.hello().wait(); group.hello().wait()",
            ["rank says no", "stream says no"],
        ),
        (
            "import time; group[1].die(); os.kill(group.worker_info_list[0].worker.pid, 9); time.sleep(1)",
            [rf"rank {rank} .*killed by SIGKILL" for rank in (0, 1)],
        ),
    ],
    ids=["calls and streams", "deaths in a call and in none"],
)
def test_a_failure_that_the_script_did_not_notice_is_no_success(tmp_path: Path, body: str, said: list[str]) -> None:
    done = launch(tmp_path, body)
    assert done.returncode == 1, done.stderr
    _, _, told = done.stderr.partition("did not notice these failures")
    for words in said:
        assert re.search(words, told), done.stderr
    bundle = re.search(r"a bundle of the run: (\S+) ", done.stderr)
    assert bundle, done.stderr
    kept = read_bundle(Path(bundle[1]))
    assert not kept.is_alive, "its failures were known once its nodes had ended"
    assert kept.missing == {"its verdict": "the script had ended before the run could be asked"}


DEALT_WITH = """
try:
    group.fail().wait()
except ValueError:
    print("dealt with")

if not any(outcome.ok for outcome in group.fail().outcomes().wait()):
    print("dealt with")

try:
    list(group.stream())
except ValueError:
    print("dealt with")

handle = group.fail()
group.hello().wait()
handle.cancel()
try:
    handle.wait()
except ValueError:
    print("dealt with")

try:
    group.die().wait()
except WorkerDied:
    print("dealt with")
"""


@pytest.mark.slow
def test_failures_that_the_script_dealt_with_are_its_own_business(tmp_path: Path) -> None:
    done = launch(tmp_path, DEALT_WITH)
    assert done.stdout.count("dealt with") == 5
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_with_fail_fast_a_script_that_waits_for_something_else_ends(tmp_path: Path) -> None:
    done = launch(tmp_path, "group[1].fail(); group[0].wait_for_ever().wait()", "--fail-fast")
    assert done.returncode == 1
    assert "ValueError: rank says no" in done.stderr
    assert "UnobservedFailure: the wait for fragile.wait_for_ever() on 1 rank" in done.stderr


LOSE = """
far = Fragile.create_group().launch(cluster, NodePlacementStrategy([1, 1]), name="far").wait_ready()
os.kill(cluster.status(node={node})["pid"], signal.SIGKILL)
while {still_there}:
    os.sched_yield()
"""

LOSE_THE_OTHER = LOSE.format(node=1, still_there="len(cluster.get_alive_nodes()) == 2")

NOTICE = """
try:
    far.hello().wait()
except NodeLost:
    print("dealt with")
"""


@pytest.mark.slow
def test_the_loss_of_a_node_with_ranks_that_the_script_did_not_notice_is_no_success(tmp_path: Path) -> None:
    done = launch(tmp_path, LOSE_THE_OTHER, "--local-nodes", "2")
    assert done.returncode == 1, done.stderr
    assert "did not notice these failures:\n  node 1 (" in done.stderr
    assert "ranks 0-1 of group 'far' were there" in done.stderr


@pytest.mark.slow
def test_the_loss_of_a_node_that_the_script_dealt_with_is_its_own_business(tmp_path: Path) -> None:
    done = launch(tmp_path, LOSE_THE_OTHER + NOTICE, "--local-nodes", "2")
    assert "dealt with" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_loss_of_the_scripts_own_node_is_no_success(tmp_path: Path) -> None:
    done = launch(tmp_path, LOSE.format(node=0, still_there="cluster._client.closed is None"), "--local-nodes", "2")
    assert done.returncode == 1, done.stderr
    assert "did not notice these failures:\n  the script's own node, " in done.stderr
