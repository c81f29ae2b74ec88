"""Definitions of a script in its workers: caches, locks, classes pickled by reference, compiled functions, children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.fake_hosts import CHECKOUT

KINDS = (CHECKOUT / "tests" / "_support" / "script_kinds.py").read_text()
GUARD = 'if __name__ == "__main__":\n    run()\n'


def run_python(*arguments: str, folder: Path, stdin: str = "") -> str:
    """Return the output of a script that must end well."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "way", ["guarded", *(pytest.param(way, marks=pytest.mark.slow) for way in ("unguarded", "stdin"))]
)
def test_whatever_a_script_defines_works_in_its_workers_without_an_import(way: str, tmp_path: Path) -> None:
    assert KINDS.endswith(GUARD)
    text = KINDS.replace("import annotations\n", "import annotations\nopen('executed', 'a').write('.')\n")
    (tmp_path / "script.py").write_text(text if way == "guarded" else text.replace(GUARD, "run()\n"))
    if way == "stdin":
        printed = run_python("-", folder=tmp_path, stdin=(tmp_path / "script.py").read_text())
    else:
        printed = run_python("script.py", folder=tmp_path)
    assert json.loads(printed) == {}
    assert (tmp_path / "executed").read_text() == "."


IMPORTED = """
import multiprocessing, pickle
import torch
from rlinf_async import Cluster, Worker
from . import numbers
from ..top import TOP

class Sent: ...
class Unsent(Sent): ...

@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1

def compiled(x):  # as torch.compile leaves it: a function that holds what cannot travel
    return x + 2
compiled.engine = (step for step in ())

def answer(queue, value):
    queue.put((numbers.VALUE, TOP, type(value) is Sent))

class Own(Worker):
    def load(self, pickled): return pickle.loads(pickled)
    def call(self, function): return function(torch.ones(1)).item() + scripted(torch.ones(1)).item()
    def is_known(self, value): return type(pickle.loads(pickle.dumps(value))) is type(value) is Sent
    def by_child(self, method):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=answer, args=(queue, Sent()))
        child.start()
        try:
            return queue.get(timeout=30)
        finally:
            child.join(5)

if __name__ == "__main__":
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Own.create_group().launch(cluster)
        print(group.by_child("spawn").wait(60))
        print(group.call(compiled).wait(60), group.call(lambda x: scripted(x)).wait(60))
        (came,) = group.load(pickle.dumps(Unsent())).wait(60)
        print(type(came) is Unsent, group.is_known(Sent()).wait(60))
"""


@pytest.mark.slow
def test_what_cannot_travel_is_imported_from_a_module_that_python_m_runs(tmp_path: Path) -> None:
    inner = tmp_path / "pkg" / "sub"
    inner.mkdir(parents=True)
    for name, text in {"__init__": "", "top": "TOP = 7", "sub/__init__": "", "sub/numbers": "VALUE = 42"}.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    (inner / "train.py").write_text(IMPORTED)
    printed = run_python("-m", "pkg.sub.train", folder=tmp_path)
    assert printed == "[(42, 7, True)]\n[5.0] [4.0]\nTrue [True]\n"


UNGUARDED = """
import pickle
open("executed", "a").write(".")
import torch
from rlinf_async import Cluster, SerializationError, Worker

class Unsent: ...

@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1

class Own(Worker):
    def load(self, pickled): return pickle.loads(pickled)
    def call(self, function): return function(torch.ones(1))

with Cluster(num_nodes=1, log_to_driver=False) as cluster:
    group = Own.create_group().launch(cluster)
    for call in (lambda: group.call(lambda x: scripted(x)), lambda: group.load(pickle.dumps(Unsent()))):
        try:
            call().wait(60)
        except (SerializationError, AttributeError) as error:
            print(error)
"""


@pytest.mark.slow
def test_a_script_without_the_guard_is_never_imported_and_errors_ask_for_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    refused, unknown, *_ = run_python("script.py", folder=tmp_path).splitlines()
    assert "args[0].__globals__['scripted'] is of type torch.jit" in refused
    assert "it is part of scripted() of the script" in refused
    assert refused.endswith('script.py cannot be imported: put what it does below `if __name__ == "__main__":`')
    assert unknown.startswith("Can't get attribute 'Unsent' on <module '__main__'")
    assert (tmp_path / "executed").read_text() == "."
