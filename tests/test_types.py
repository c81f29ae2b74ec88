"""``group.call(Worker.method, ...)``, what type checkers know of it, and what editors see of a group's methods."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, WorkerGroup, each
from tests._support.typed_workers import Calling, Doubling, Scaling

pytestmark = pytest.mark.shared_cluster

TWO = NodePlacementStrategy([0, 0])

CONFIGURATION = """
    [mypy]
    strict = true
    python_version = 3.11
    follow_imports = silent
    # Most of the seconds would go into these.
    [mypy-torch.*,numpy.*,grpc.*,rlinf_async.weights.*,rlinf_async.rlinf.*,rlinf_async.torchrl.*]
    follow_imports = skip
    [mypy-rlinf_async.hardware.*,rlinf_async.configuration.*,rlinf_async.placement.*,rlinf_async.routing.*]
    follow_imports = skip
    [mypy-uvloop.*,msgpack.*,cloudpickle.*,psutil.*]
    ignore_missing_imports = true
"""

WORKER = """
    from collections.abc import AsyncIterator
    from typing import assert_type

    from rlinf_async import Cluster, Handle, Stream, Worker, WorkerGroup, concurrent, each, wait_all

    class Rollout(Worker):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def step(self, x: int, *, fast: bool = False) -> float:
            return x * self.scale

        async def think(self, words: list[str]) -> dict[str, int]:
            return {word: 0 for word in words}

        async def stream(self, n: int) -> AsyncIterator[str]:
            yield str(n)

        @concurrent
        async def stop(self) -> bool:
            return True
"""

RIGHT = """
    class Typed(Rollout):
        async def in_a_coroutine(self) -> None:
            assert_type(await self.acquire_free_port(), int)
            assert_type(await WorkerGroup.from_group_name(Rollout, "rollout"), WorkerGroup[Rollout])
            await self.send("x", "rollout", 0)
            await self.broadcast("x")

        def in_a_def(self) -> int:
            self.send("x", "rollout", 0)
            wait_all(self.send("x", "rollout", 0, async_op=True))
            assert_type(WorkerGroup.from_group_name(Rollout, "rollout"), WorkerGroup[Rollout])
            return self.acquire_free_port() + 1

    def left_out(group: WorkerGroup, handle: Handle, stream: Stream) -> None: ...

    async def main(cluster: Cluster, base: WorkerGroup[Worker]) -> None:
        group = Typed.create_group(2.0).launch(cluster, name="rollout")
        assert_type(group, WorkerGroup[Typed])
        base = group
        handle = group.call(Rollout.step, 1, fast=True)
        assert_type(handle, Handle[float])
        assert_type(await handle, list[float])
        assert_type(handle[0].wait(), float)
        assert_type(await handle.consume_durations(), dict[str, float])
        assert_type(await group[0:1].call(Typed.think, each([["a"], ["b"]])), list[dict[str, int]])
        assert_type(await group.execute_on(0).call(Rollout.stop), list[bool])
        async for rank, item in group.call(Rollout.stream, 3):
            assert_type((rank, item), tuple[int, str])
        left_out(group, handle, group.call(Rollout.stream, 3))
        await group.rollout(3)
        await group.close()
"""

WRONG = """
    class Other(Worker):
        def step(self, x: int) -> float:
            return x

        @concurrent  # wrong
        def stop(self) -> None: ...

    async def main(cluster: Cluster, group: WorkerGroup[Rollout]) -> None:
        group.call(Rollout.step, "three")  # wrong
        group.call(Rollout.step)  # wrong
        (await group.call(Rollout.step, 3))[0].upper()  # wrong
        group[0].call(Rollout.step, 3, slow=True)  # wrong
        group.call(Other.step, 3)  # wrong
        await group.call(Rollout.stream, 3)  # wrong
        group.call(Rollout.think, each([1, 2]))  # wrong
        Rollout.create_group("two")  # wrong
        WorkerGroup.from_group_name(Rollout, "rollout").call(Other.step, 3)  # wrong
"""


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[WorkerGroup[Scaling]]:
    group = Scaling.create_group().launch(cluster, TWO, name="scaling")
    yield group
    group.close()


@pytest.mark.slow
def test_mypy_knows_right_calls_from_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(dedent(CONFIGURATION))
    (tmp_path / "right.py").write_text(dedent(WORKER) + dedent(RIGHT))
    wrong = dedent(WORKER) + dedent(WRONG)
    (tmp_path / "wrong.py").write_text(wrong)
    expected = {("wrong", str(number)) for number, line in enumerate(wrong.splitlines(), 1) if line.endswith("# wrong")}
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--cache-dir=cache", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not checked.stderr
    assert set(re.findall(r"^(\w+)\.py:(\d+): error:", checked.stdout, re.M)) == expected, checked.stdout


async def test_call_does_what_the_method_of_the_group_does(group: WorkerGroup[Scaling]) -> None:
    assert await group.call(Scaling.scaled, 3) == await group.scaled(3) == [6, 6]
    assert await group.call(Scaling.scaled, 3, by=5) == [15, 15]
    assert await group.call(Scaling.shifted, each([1, 2])) == [1, 3]
    assert await group[1].call(Scaling.shifted, 1) == await group.execute_on(1).call(Scaling.shifted, 1) == [2]
    assert [item async for item in group[1].call(Scaling.counted, 2)] == [(1, 0), (1, 1)]
    untyped: Any = group
    assert await untyped.call(Scaling.halved, 8) == [4, 4]
    assert await untyped.call(Scaling.named, "of ") == ["of Scaling"] * 2


def test_call_calls_what_the_worker_class_has_under_the_name_of_an_inherited_method(cluster: Cluster) -> None:
    with_four = Doubling.create_group().launch(cluster, name="doubling")
    assert with_four.call(Scaling.scaled, 1).wait() == with_four.call(Doubling.scaled, 1).wait() == [4]
    with_four.close()


def test_a_plain_generator_says_that_an_async_one_streams(group: Any) -> None:
    said = r"generated\(\) is a plain generator: make it `async def`, and its items are streamed"
    with pytest.raises(TypeError, match=rf"^scaling\.{said}$"):
        group.generated(3)
    with pytest.raises(TypeError, match=rf"^scaling\.{said}$"):
        group[0].generated(3)
    with pytest.raises(TypeError, match=rf"^Scaling\.{said}$"):
        group.call(Scaling.generated, 3)


def test_call_refuses_what_is_no_public_method_of_the_worker_class(group: Any) -> None:
    fix = r"write Scaling\.scaled, of the class that this group was launched or found with"
    with pytest.raises(TypeError, match=rf"takes a public method of Scaling, and 'scaled' is none: {fix}"):
        group.call("scaled", 1)
    with pytest.raises(TypeError, match=r"'scalde' is none \(did you mean 'scaled'\?\): it has "):
        group.call("scalde", 1)
    with pytest.raises(TypeError, match=rf"tests\._support\.typed_workers\.Doubling\.scaled is none: {fix}"):
        group.call(Doubling.scaled, 1)
    with pytest.raises(TypeError, match=rf"<GroupMethod scaling\.scaled> is none: {fix}"):
        group.call(group.scaled, 1)
    with pytest.raises(TypeError, match=r"Calling\.other is none: it has .*, scaled, "):
        group.call(Calling.other)
    with pytest.raises(TypeError, match=r"\[\] is none: it has "):
        group.call([])
    with pytest.raises(ValueError, match=r"_hidden of Scaling is hidden"):
        group.call(Scaling._hidden)


def test_a_worker_class_may_have_a_method_call_of_its_own(cluster: Cluster) -> None:
    group: Any = Calling.create_group().launch(cluster, name="calling")
    assert group.call("its own").wait() == ["its own"]
    assert WorkerGroup.call(group, Calling.call, "typed").wait() == ["typed"]
    assert WorkerGroup.call(group, Calling.other).wait() == ["other"]
    group.close()


def test_a_method_of_the_group_has_the_signature_and_the_docstring_of_the_workers(group: Any) -> None:
    assert str(inspect.signature(group.scaled)) == "(x: 'int', *, by: 'int' = 2) -> 'int'"
    assert str(inspect.signature(group.halved)) == "(x: 'int') -> 'int'"
    assert str(inspect.signature(group.named)) == "(prefix: 'str') -> 'str'"
    assert inspect.signature(group.scaled).bind(3, by=1).args == (3,)
    assert inspect.getdoc(group.scaled) == "A number, scaled."
    assert (group.scaled.__name__, group.scaled.__wrapped__) == ("scaled", Scaling.scaled)
    assert repr(group[1].scaled) == "<GroupMethod scaling.scaled>"
    assert {"scaled", "shifted", "counted", "execute_on"} <= set(dir(group))
