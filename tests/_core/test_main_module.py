"""Definitions of the user's ``__main__`` in workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, pickle, sys
from dataclasses import dataclass
from rlinf_async import Cluster, Worker

@dataclass
class Item:
    x: int

class OwnError(ValueError): ...

def twice(x): return 2 * x

class Own(Worker):
    def apply(self, function, item):
        assert type(pickle.loads(pickle.dumps(self.make()))) is Item  # as a DataLoader's spawned child would need it
        return Item(function(item.x))
    def make(self): return Item(0)
    def fail(self): raise OwnError("as told")

def run():
    with Cluster(log_to_driver=False) as cluster:
        group = Own.create_group().launch(cluster)
        items = group.apply(twice, Item(4)).wait(), group.apply(lambda x: twice(x) + 1, Item(1)).wait()
        print(items, type(items[0][0]) is Item)
        try:
            group.fail().wait()
        except OwnError as error:
            print(error)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=run)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_what_a_spawned_child_has_of_the_script_works_in_the_workers_that_it_launches(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "([Item(x=8)], [Item(x=3)]) True\nas told\n"), done.stderr


FOUND_BY_NAME = """
import sys
from rlinf_async._core import codec, main_module, process
path = sys.argv[1]
sys.argv = ["the template's"]
main_module.renew(path)
assert sys.argv == [path]
try:
    codec.decode(b"\\0" + b"c__main__\\nwanted\\n.")
except codec.SerializationError as error:
    print(error)
else:
    print("found")
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "there is no file {} on this node to import it from; a module of its own"),
        ("wanted = 1", '{} cannot be imported: put what it does below `if __name__ == "__main__":`; a module'),
        (
            "import sys\nsys.exit(3)\nif __name__ == '__main__': ...",
            "importing {} has failed (SystemExit: 3); a module",
        ),
        ("other = 1\nif __name__ == '__main__': ...", "{} does not define it; a module of its own could be imported"),
        (
            "from rlinf_async import Cluster\nCluster()\nif __name__ == '__main__': ...",
            "importing {} has failed (RuntimeError: Cluster() was called in a worker, which imports the script again",
        ),
        ("wanted = 1\nif __name__ == '__main__': wanted = 2", "found"),
    ],
)
def test_an_unknown_name_of_the_script_is_told_with_the_reason(script: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    if script is not None:
        path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", FOUND_BY_NAME, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert told.format(path) in done.stdout
    if told != "found":
        assert "'wanted' of the script, which travels by its name, is not known on this side: " in done.stdout


RECEIVER = """
import sys
from rlinf_async._core import codec, main_module
main_module.renew(None)
functions = [codec.decode(body) for body in eval(sys.stdin.read())]
print([function() for function in functions], len(set(functions)))
"""

SENDER = """
import logging, subprocess, sys
from logging import _lock as imported_lock
from rlinf_async._core import codec

RATE, LIMITS = 1, [1]
class Config: number = 1
def inner(): return RATE
def function(): return inner() + Config.number
def is_imported(): return imported_lock is logging._lock
def limit(): return LIMITS[0]
def uses_a_list(): return limit()

bodies = [codec.encode(function).to_bytes(), codec.encode(function).to_bytes()]
RATE = 2
bodies.append(codec.encode(function).to_bytes())
def inner(): return RATE * 10
bodies.append(codec.encode(function).to_bytes())
class Config: number = 100
bodies += [codec.encode(function).to_bytes(), codec.encode(is_imported).to_bytes()]
bodies.append(codec.encode(uses_a_list).to_bytes())
LIMITS = [7]
bodies.append(codec.encode(uses_a_list).to_bytes())
subprocess.run([sys.executable, "-c", sys.argv[1]], input=repr(bodies), text=True, check=True)
"""


def test_a_function_is_the_one_that_has_arrived_unless_something_that_it_refers_to_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SENDER)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(path), RECEIVER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[2, 2, 3, 21, 120, True, 1, 7] 7\n"


def test_a_child_does_not_wait_for_a_thread_that_its_parent_alone_has() -> None:
    program = """
import os, threading
from rlinf_async._core.main_module import script

taken = threading.Event()

def hold() -> None:
    script._lock.acquire()
    taken.set()

threading.Thread(target=hold).start()
taken.wait()
if not (child := os.fork()):
    os._exit(0 if script._lock.acquire(timeout=5) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=20).returncode == 0
