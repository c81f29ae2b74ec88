"""Plain scripts: ``python train.py`` with nothing configured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from textwrap import dedent

import psutil
import pytest

from tests._support import leaks

ROOT = Path(__file__).parents[1]


def run_script(
    path: Path, text: str, *args: str, timeout: float = 60, flags: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    path.write_text(dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *flags.split(), str(path), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run of classes of the script's and of a module beside it, for the tests that look at what it has said."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "beside.py").write_text(
        dedent("""
        from rlinf_async import Worker

        class Beside(Worker):
            def where(self):
                import os
                return __name__, os.getcwd()
        """)
    )
    with leaks.none_left():
        done = run_script(
            folder / "train.py",
            """
            import multiprocessing
            import os
            import sys
            from dataclasses import dataclass
            from beside import Beside
            from rlinf_async import Cluster, NodePlacementStrategy, Worker

            @dataclass
            class Point:
                x: int

            class Odd(Exception):
                pass

            def double(x):
                return 2 * x

            class Mover(Worker):
                def move(self, point):
                    assert isinstance(point, Point)
                    return Point(point.x + 1)

                def fail(self):
                    raise Odd("own type")

                def spawned(self):
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        return pool.map(double, [1, 2])

            class Talker(Worker):
                def talk(self):
                    print("hello from", self._rank)
                    print("trouble", file=sys.stderr)

            if __name__ == "__main__":
                with Cluster() as cluster:
                    group = Mover.create_group().launch(cluster, name="move")
                    moved = group.move(Point(1)).wait()[0]
                    assert isinstance(moved, Point) and moved == Point(2), moved
                    try:
                        group.fail().wait()
                    except Odd as error:
                        print("caught", error)
                    print(group.spawned().wait())
                    beside = Beside.create_group().launch(cluster)
                    assert beside.where().wait() == [("beside", os.getcwd())]
                    talkers = Talker.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="talk")
                    talkers.talk().wait()
            """,
        )
    assert done.returncode == 0, done.stderr
    return done


def test_a_class_and_its_values_defined_in_main_travel_both_ways(done: subprocess.CompletedProcess[str]) -> None:
    assert {"caught own type", "[[2, 4]]"} < {*done.stdout.splitlines()}


def test_a_class_of_a_module_beside_the_script_is_found(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, "or the script has found otherwise"


def test_output_of_workers_carries_who_said_it(done: subprocess.CompletedProcess[str]) -> None:
    """Those of the group that fails tell of that beside these."""
    stdout, (first, *stderr) = (
        [line for line in text.splitlines() if not line.startswith("[move:0@localhost] ")]
        for text in (done.stdout, done.stderr)
    )
    assert sorted(stdout) == [
        "[[2, 4]]",
        "[talk:0@localhost] hello from 0",
        "[talk:1@localhost] hello from 1",
        "caught own type",
    ]
    assert re.fullmatch(r"rlinf run [0-9a-f]{8}: logs in /.+/[0-9a-f]{8}", first)
    assert sorted(stderr) == ["[talk:0@localhost] trouble", "[talk:1@localhost] trouble"]


@pytest.mark.parametrize(
    ("last_line", "code"),
    [
        ("", 0),
        pytest.param("import sys; sys.exit(7)", 7, marks=pytest.mark.slow),
        pytest.param("raise ValueError('mine')", 1, marks=pytest.mark.slow),
    ],
)
def test_a_script_that_closes_nothing_keeps_its_exit_code_and_leaves_nothing(
    tmp_path: Path, last_line: str, code: int
) -> None:
    done = run_script(
        tmp_path / "train.py",
        f"""
        import atexit

        def after_cluster():
            try:
                group.hello().wait()
            finally:
                cluster.close()

        def before_cluster():
            print("hello", *group.hello().wait())

        atexit.register(after_cluster)

        from rlinf_async import Cluster, Worker

        class Idle(Worker):
            def hello(self):
                return self._rank

            def stand_still(self):
                import time
                time.sleep(1000)

        cluster = Cluster(num_nodes=1)
        atexit.register(before_cluster)
        group = Idle.create_group().launch(cluster)
        group.hello().wait()
        Idle.create_group().launch(cluster, name="busy").stand_still()
        print(cluster.run_id)
        {last_line}
        """,
    )
    assert done.returncode == code, done.stderr
    assert "ClosedError: group 'worker_group_Idle' is closed: hello() cannot be called any more" in done.stderr
    run, said = done.stdout.splitlines()
    assert said == "hello 0"
    assert [process for process in psutil.process_iter() if _belongs(process, run)] == []


def _belongs(process: psutil.Process, run: str) -> bool:
    try:
        return process.environ().get("RLINF_RUN_ID") == run
    except psutil.Error:
        return False


UNREAD = """
    import sys
    from rlinf_async import Cluster, Worker

    class Talker(Worker):
        def talk(self):
            for number in range(20_000):
                print(f"line {number} \\x1b]0;title\\x07" + "x" * 80)

        def hello(self):
            return self._rank

    with Cluster() as cluster:
        group = Talker.create_group().launch(cluster, name="talk")
        group.talk().wait()
        print("alive", group.hello().wait(), file=sys.stderr, flush=True)
        sys.stdin.readline()
"""


def test_a_stdout_that_is_not_read_freezes_nothing_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(UNREAD))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RLINF_OUTPUT_BUFFER_BYTES": "100000"}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as driver:
        try:
            assert driver.stdin
            assert driver.stdout
            assert driver.stderr
            said = next(line for line in driver.stderr if line.startswith("alive"))
            assert said == "alive [0]\n"
            driver.stdin.write("\n")
            driver.stdin.close()
            shown = driver.stdout.read().splitlines()
        finally:
            driver.kill()
    said_missing = r"\[talk:0@localhost\] … (\d+) lines? w\w+ not shown: rank 0's log has all of it: (.+)"
    missing = [match for line in shown if (match := re.fullmatch(said_missing, line))]
    lines = [line for line in shown if not re.fullmatch(said_missing, line)]
    assert missing
    assert lines[0] == "[talk:0@localhost] line 0 " + "x" * 80
    assert len(lines) + sum(int(match[1]) for match in missing) == 20_000
    assert len(Path(missing[0][2]).read_text().splitlines()) == 20_000


def test_a_script_that_silences_all_loggers_hears_of_errors_waits_and_deaths(tmp_path: Path) -> None:
    with leaks.none_left():
        done = run_script(
            tmp_path / "train.py",
            """
            import logging, logging.config, os, time
            from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied

            def silence():
                logging.config.dictConfig({"version": 1})
                logging.disable()
                logging.getLogger().setLevel("CRITICAL")

            class Rollout(Worker):
                def silence(self):
                    silence()
                    self.log_warning("a worker's own word")

                def boom(self):
                    raise ValueError("not awaited")

                def slow(self):
                    time.sleep(2)

                def die(self):
                    os._exit(3)

            if __name__ == "__main__":
                silence()
                os.environ["RLINF_WAIT_WARNING_S"] = "0.5"
                with Cluster(num_nodes=1) as cluster:
                    group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="rollout")
                    group.silence().wait()
                    silence()
                    group.boom()
                    group.slow().wait()
                    try:
                        group[1].die().wait()
                    except WorkerDied:
                        cluster.status(0)  # its answer comes behind the word of the death
            """,
        )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "a worker's own word" in said
    assert re.search(r"rollout-Rank-0\] boom\(\) has raised an exception", said)
    assert re.search(r"failed, and is not awaited yet: rollout.boom\(\) on 2 ranks", said)
    assert re.search(r"still waiting after .* for rollout.slow\(\) on 2 ranks", said)
    assert re.search(r"rank 1 of group 'rollout'.* exited with code 3", said)


@pytest.mark.slow
def test_workers_have_the_environment_of_their_launch_and_the_interpreters_flags(tmp_path: Path) -> None:
    """Also on another node, after a restart, and where a worker launches them."""
    done = run_script(
        tmp_path / "train.py",
        f"""
        import os
        import sys
        import warnings
        sys.path.insert(0, {str(ROOT)!r})  # which -I keeps out
        os.environ["BEFORE"] = "set"
        from pathlib import Path
        from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied

        class Probe(Worker):
            def look(self):
                names = ("BEFORE", "AFTER", "OTHER", "GONE", "OMP_NUM_THREADS", "GROUP", "RANK")
                return [os.environ.get(name) for name in names]

            def flags(self):
                print("no end of line", end="")
                try:
                    warnings.warn("mine")
                except UserWarning as error:
                    flags = sys.flags
                    return flags.optimize, flags.isolated, flags.utf8_mode, sys.warnoptions, sys._xoptions, str(error)

            def below(self):
                os.environ["BEFORE"] = "worker"
                return Probe.create_group().launch(Cluster(), name="below").look().wait()[0]

            def die(self):
                os._exit(3)

        def expect(found, wanted):  # -O takes assertions out
            if found != wanted:
                sys.exit(f"found {{found}}, wanted {{wanted}}")

        if __name__ == "__main__":
            with Cluster(local_nodes=2) as cluster:
                os.environ.update(AFTER="set", OTHER=os.fsdecode(b"\\xff"), GROUP="script", RANK="7")
                del os.environ["GONE"]
                place = NodePlacementStrategy([0, 1])
                group = Probe.create_group().launch(cluster, place, name="g", env={{"GROUP": "own"}}, restart="rank")
                del os.environ["AFTER"]
                values = ["set", "set", "\\udcff", None, "2"]
                expect(group.look().wait(), [[*values, "own", "0"], [*values, "own", "1"]])
                flags = (1, 1, 1, ["error::UserWarning"], {{"utf8": True}}, "mine")
                expect(group.flags().wait(), [flags, flags])
                try:
                    group[1].die().wait()
                except WorkerDied as died:
                    expect(Path(died.log_path).with_suffix(".out").read_text().splitlines()[-1], "no end of line")
                expect(group[1].look().wait(), [[*values, "own", "1"]])
                expect(group[0].below().wait(), [["worker", *values[1:], "script", "0"]])
        """,
        flags="-I -O -u -X utf8 -W error::UserWarning",
        GONE="here",
        OMP_NUM_THREADS="2",
    )
    assert done.returncode == 0, done.stderr
