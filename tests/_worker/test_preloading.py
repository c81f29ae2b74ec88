"""Imports of modules whose effects workers could not inherit by a fork, each in a child of one process with torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rlinf_async._worker import preloading

PROGRAM = """
    import json, os, sys
    import numpy.random, torch.distributed
    from rlinf_async._worker import preloading

    sys.path.insert(0, sys.argv[1])
    os.environ["RANK"] = "of the node"
    for name in sys.argv[2:]:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            imported = preloading.Imported()
            try:
                preloading.import_module(name, ["RANK"], imported)
                told = ["", sorted(imported.variables.items()), [os.path.basename(path) for path in imported.files]]
            except preloading.RefusedError as error:
                told = [str(error), error.is_missing]
            os.write(write, json.dumps([name, *told]).encode() + b"\\n")
            os._exit(0)
        os.close(write)
        with open(read) as reader:
            print(reader.readline(), end="", flush=True)
        os.waitpid(child, 0)
"""
MODULES = {
    "quiet": "VALUE = 7",
    "thread": "import threading; threading.Thread(target=threading.Event().wait, name='t', daemon=True).start()",
    "ended_thread": "import threading; t = threading.Thread(target=int); t.start(); t.join()",
    "device": "import os; FD = os.open('/dev/full', 2); n = os.fstat(FD).st_rdev; os.major = lambda d: 1 + (d == n)",
    "odd_name": "open('/proc/self/comm', 'wb').write(bytes([208]))",  # which is no text
    "null": "import os; FD = os.open('/dev/null', os.O_RDWR)",
    "file": "FILE = open(__file__)",
    "child": "import os, time; os.fork() or (time.sleep(1), os._exit(0))",
    "child_goes_on": "import os; os.fork() and os.wait()",
    "raises": "1 / 0",
    "exits": "raise SystemExit(3)",
    "needs": "import nowhere_at_all",
    "rank": "import os; RANK = os.getenv('RANK')",
    "copies": "import os; VARIABLES = dict(os.environ)",
    "scans": "import os; OWN = [value for key, value in os.environ.items() if key.startswith('SCANS_')]",
    "handler": "import signal; signal.signal(signal.SIGUSR1, lambda *args: None)",
    "draws": "import random; TABLE = random.random()",
    "seeds": "import torch; torch.manual_seed(1)",
    "seeds_numpy": "import numpy; numpy.random.seed(1)",
    "one_thread": "import torch; torch.set_num_threads(1)",
    "variables": "import os; os.environ['NEW'] = '1'; os.environ['HOME'] = '/x'; del os.environ['PATH']",
}
EXPECTED = {
    "thread": r"its import starts 1 thread \(t\)",
    "device": r"its import leaves /dev/full open",
    "file": r"its import leaves .*/file.py open",
    "child": r"its import leaves a child process",
    "child_goes_on": "",
    "raises": "its import raises ZeroDivisionError: division by zero",
    "exits": "its import raises SystemExit: 3",
    "needs": "its import raises ModuleNotFoundError: No module named 'nowhere_at_all'",
    "rank": r"its import reads \$RANK, which each worker has for itself",
    "copies": r"its import reads \$RANK, which each worker has for itself",
    "handler": "its import changes the handler of signal 10",
    "draws": "its import changes the state of random",
    "seeds": "its import changes the state of torch's generator",
    "seeds_numpy": "its import changes the state of numpy.random",
    "one_thread": "its import changes torch's number of threads",
    "absent": "its import raises ModuleNotFoundError: No module named 'absent'",
    "quiet.absent": ".*'quiet' is not a package",
}
ENV = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder: Path = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(f"{text}\n")
    command = [sys.executable, "-c", dedent(PROGRAM), str(folder), *MODULES, "absent", "quiet.absent"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=ENV)
    assert done.returncode == 0, done.stderr
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", [*MODULES, "absent", "quiet.absent"])
def test_a_module_is_refused_whose_effects_a_fork_shares_or_loses(told: dict[str, list[object]], name: str) -> None:
    reason, *rest = told[name]
    assert re.fullmatch(EXPECTED.get(name, ""), str(reason)), reason
    if reason:
        assert rest == [name in ("absent", "quiet.absent")], "only a module that does not exist is missing"
    else:
        changed = [["HOME", "/x"], ["NEW", "1"], ["PATH", None]] if name == "variables" else []
        assert rest == [changed, [f"{name}.py"]]


def test_a_thread_that_ends_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Path(f"/proc/self/task/{number}") for number in (os.getpid(), 1 << 30)]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(tasks))
    assert len(preloading.thread_names()) == 1
