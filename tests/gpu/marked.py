"""Step c: every test with the mark ``gpu``, and the documented communication example on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory

from rlinf_async import Cluster, PackedPlacementStrategy
from tests._support.documented_exchange import DEVICE, RECV_GROUP_NAME, SEND_GROUP_NAME, RecvWorker, SendWorker
from tests.gpu.run import CHECKOUT
from tests.gpu.step import Step, main


def check_documented_exchange(step: Step) -> str:
    with Cluster(num_nodes=1) as cluster:
        place = PackedPlacementStrategy(0, 0)
        sending = SendWorker.create_group().launch(cluster, place, name=SEND_GROUP_NAME)
        receiving = RecvWorker.create_group().launch(cluster, place, name=RECV_GROUP_NAME)
        works = sending.hello_recv(), receiving.hello_recv()
        reply, (message, one, several, named, in_place) = works[0].wait()[0], works[1].wait()[0]
        assert reply == "Hello from RecvWorker Rank 0!"
        assert message == "Hello from SendWorker Rank 0!"
        tensors = [one, *several, *named.values(), in_place]
        works = sending.hello_recv_async(), receiving.hello_recv_async()
        works[0].wait()
        tensors += works[1].wait()[0]
        assert {tensor.device.type for tensor in tensors} == {DEVICE}, [tensor.device for tensor in tensors]
        assert [float(tensor.sum()) for tensor in tensors] == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
    return f"on {DEVICE}"


def marked_files() -> list[str]:
    """Return the paths of the files with such a test; others may need packages that are missing here."""
    here = Path(__file__).parent
    paths = [path for path in here.parent.rglob("test_*.py") if path.parent != here]
    return [str(path) for path in paths if "pytest.mark.gpu" in path.read_text()]


def check_tests_marked_gpu(step: Step) -> str:
    return run_marked(step, marked_files())


def run_marked(step: Step, paths: list[str]) -> str:
    """Run the tests marked ``gpu`` of some files, and write down each that fails.

    Raises:
        AssertionError: one has failed, or none has run.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [
            sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", f"--junitxml={report}",
            "-p", "no:benchmark",  # which warns beside xdist, and warnings are errors
            "-n", str(min(6, os.cpu_count() or 1)), "-o", "faulthandler_timeout=30", *paths,
        ]  # fmt: skip
        status = subprocess.run(command, cwd=CHECKOUT, check=False, stdin=subprocess.DEVNULL).returncode
        if not report.exists():
            raise AssertionError(f"pytest exited with status {status} and has no report; the log has its output")
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
            if failure is not None:
                step.say(name, (failure.get("message") or "")[:300], state="FAILED")
            counts[
                "failed" if failure is not None else "skipped" if case.find("skipped") is not None else "passed"
            ] += 1
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    assert status == 0, told
    assert counts["passed"], told
    return told


CHECKS = [check_documented_exchange, check_tests_marked_gpu]

if __name__ == "__main__":
    main("c", CHECKS)
