"""The public names: what docs/names.md documents is what completion shows, in modules and on objects."""

from __future__ import annotations

import compileall
import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlinf_async.rlinf
import rlinf_async.torchrl
import rlinf_async.weights

PAGE = (Path(__file__).parents[1] / "docs" / "names.md").read_text()
TABLES = [rlinf_async, rlinf_async.rlinf, rlinf_async.torchrl, rlinf_async.weights]


def documented(head: str) -> dict[str, list[str]]:
    """By the first column of a table, the names in its second."""
    table = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0]
    return {row[0]: re.findall(r"`(\w+)`", row[1]) for row in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.M)}


def attributes(cls: type) -> set[str]:
    """Public attributes of a class and of its objects, as far as the class tells."""
    found = {*dir(cls), *(name for owner in cls.__mro__ for name in getattr(owner, "__annotations__", ()))}
    return {name for name in found if not name.startswith("_")}


def test_completion_shows_what_is_documented() -> None:
    shown = [name for name in dir(rlinf_async) if not name.startswith("__")]
    assert shown == rlinf_async.__all__ == sorted(documented("name"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.__name__))
def test_a_table_shows_its_names_and_finds_them(table: Any) -> None:
    assert [name for name in dir(table) if not name.startswith("__")] == table.__all__
    assert all(callable(getattr(table, name)) for name in table.__all__)
    with pytest.raises(AttributeError, match=f"module '{table.__name__}' has no attribute 'nothing'"):
        _ = table.nothing
    assert not hasattr(table, "no.thing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {table.__name__} import nothing")


@pytest.mark.parametrize("table", TABLES[1:3], ids=lambda table: str(table.__name__))
def test_the_root_and_the_weights_find_the_other_systems_names(table: Any) -> None:
    for name in table.__all__:
        assert getattr(rlinf_async, name) is getattr(rlinf_async.weights, name) is getattr(table, name)


def test_each_name_has_one_place() -> None:
    names = [name for table in TABLES[:3] for name in table.__all__]
    assert len(set(names)) == len(names)
    assert not {f"rlinf_async.{name}" for name in names} & documented("module").keys()


def test_every_documented_module_is_there() -> None:
    for module in documented("module"):
        importlib.import_module(module)


@pytest.mark.parametrize("name", documented("class"))
def test_an_object_shows_what_is_documented(name: str) -> None:
    assert attributes(getattr(rlinf_async, name)) == set(documented("class")[name])


def test_an_attribute_that_is_not_documented_would_be_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Grown(rlinf_async.Outcome):
        field: int = 0
        _hidden: int = 0

        def method(self) -> None: ...

    assert attributes(Grown) - attributes(rlinf_async.Outcome) == {"field", "method"}


def test_public_modules_are_found_after_the_import_of_the_package_alone() -> None:
    script = "import sys, rlinf_async\nprint(rlinf_async.errors.WorkerDied.__name__)"
    script += "\nprint(hasattr(rlinf_async, 'Clutser'), [name for name in ('torch', 'grpc') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["WorkerDied", "False []"]


def test_names_are_found_where_only_compiled_files_are_installed(tmp_path: Path) -> None:
    package = tmp_path / "rlinf_async"
    shutil.copytree(Path(rlinf_async.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    script = (
        "import rlinf_async\nprint(rlinf_async.__file__, rlinf_async.Work.__name__, rlinf_async.CommMapper.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(package / "__init__.pyc"), "Work", "CommMapper"]
