"""Architecture rules: imports run down in no circles; dangerous calls, names and first lines have their places.

A new module is given its place here: in ``STOREYS`` (rlinf_async) or in ``NEAR`` or ``FAR`` (launcher).
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def rooms(line: str) -> set[str]:
    return set(line.split())


# Bottom first.  A room imports itself and the storeys below, not its neighbours on the same line.
STOREYS = (
    "_public_names",
    "errors",
    "settings",
    "address",
    "_core",
    "_channels.state _messaging.state _trace.state _inspection.state _recorder.state",
    "_experience.state",
    "_recorder",
    "hardware profiling",
    "configuration",
    "placement routing",
    "_waits",
    "_wire",
    "work",
    "_client",
    "_inspection",
    "_trace",
    "_channels",
    "channel",
    "outcome",
    "handle",
    "stream",
    "_transports",
    "_messaging",
    "_group",
    "any_rank",
    "group",
    "_worker",
    "worker",
    "_experience",
    "experience",
    "_cluster",
    "cluster",
    "weights.state weights.waiting",
    "weights.model",
    "weights.memory",
    "weights.links",
    "weights.plane",
    "weights.transports",
    "weights.schemes",
    "weights.scope weights.followers",
    "weights.publication weights.following",
    "rlinf torchrl",
    "weights",
    "engines",
    "__init__",
    "rlinf.scheduler_names",
    "__main__",
    "_worker.template",  # a program: what user code imports is there before workers are forked
    "_simulation",  # a whole run in one process: both packages, as they are
    "testing",
)
HEIGHT = {room: height for height, line in enumerate(STOREYS) for room in rooms(line)}
STRANGERS = [("_transports", "_wire"), ("_wire", "_transports")]  # they meet in the worker's mailbox

OPEN_TO_LAUNCHER = (
    *("errors", "settings", "address", "_core", "_channels.state", "_messaging.state", "_trace.state"),
    *("_inspection.state", "_recorder.state", "_recorder", "_experience.state"),
    *("hardware", "configuration", "_wire", "placement"),
    "__version__",
)
# The near side runs beside the user, bottom first; the far side is each node's daemon.
NEAR = ("source_text report options driver orphans die_with_parent", "remote control", "job", "cli", "__main__")
FAR = ("daemon",)
LAUNCHER_HEIGHT = {room: height for height, line in enumerate(NEAR) for room in rooms(line)}

# Run where nothing of ours is installed, or must stay small: the standard library only.
STANDALONE = (
    "launcher/daemon/guardian.py",
    "launcher/daemon/sign_of_life.py",
    "launcher/remote/preflight.py",
    "launcher/remote/sweeper.py",
    "launcher/die_with_parent.py",
)

# Library → the only places that may import it, here or later in a function.
ROOMS_OF = {
    "grpc": ("rlinf_async/_wire/grpc.py",),
    "prometheus_client": ("launcher/daemon/metrics_text.py",),
    "torch": tuple(
        f"rlinf_async/{room}/"
        for room in ("_transports", "weights", "engines", "rlinf", "torchrl", "_worker", "_simulation")
    ),
    "vllm": ("rlinf_async/engines/vllm_engine.py", "rlinf_async/engines/vllm_weights.py"),
    "transformers": ("rlinf_async/engines/transformers_engine.py", "rlinf_async/engines/http_engine.py"),
    "httpx": ("rlinf_async/engines/http_engine.py",),
    "fastapi": ("rlinf_async/engines/openai_server.py",),
    "uvicorn": ("rlinf_async/engines/openai_server.py",),
    "multiprocessing.reduction": (),  # unpickles whatever its socket brings
    "multiprocessing.connection": (),
}
NOT_IN_CORE = {"asyncio", "uvloop", "socket", "socketserver", "ssl", "select", "selectors", "subprocess", "http"}

UNPICKLING = {
    f"{module}.{name}" for module in ("pickle", "cloudpickle", "_pickle") for name in ("load", "loads", "Unpickler")
} | {"torch.load", "marshal.load", "marshal.loads", "shelve.open"}
UNPICKLING_ROOM = "rlinf_async/_core/codec.py"

FORBIDDEN = {
    "asyncio.wait_for": "can swallow a cancellation on Python 3.11: use asyncio.timeout",
    "asyncio.sleep": "nothing polls: wait for the thing itself, or loop.call_later",
    "time.sleep": "nothing polls: wait for the thing itself",
}
EXCUSED = {
    (
        "launcher/remote/sweeper.py",
        "time.sleep",
    ): "waits for processes that are not its children on any Python since 3.6",
    ("launcher/daemon/guardian.py", "time.sleep"): "nothing says when a machine has a free descriptor again",
}


RIDDLES = {"What", "Who", "How", "Whoever", "Whose", "Which", "Where", "When", "Whether", "Why", "That", "Those"}
SAME_NAME = {"__init__.py", "__main__.py"}


@dataclass(frozen=True)
class Import:
    line: int
    name: str  # absolute and dotted
    relative: bool
    for_annotations: bool  # under ``if TYPE_CHECKING``


def imported_as(path: str) -> str:
    """The dotted name of a path below the checkout."""
    return re.sub(r"^launcher\b", "rlinf_launcher", path).replace("/", ".")


@dataclass(frozen=True)
class Source:
    path: str  # from the top of the checkout
    text: str

    @property
    def module(self) -> str:
        return imported_as(self.path.removesuffix(".py").removesuffix("/__init__"))

    @property
    def package(self) -> str:
        return imported_as(self.path.rpartition("/")[0])

    @property
    def room(self) -> str:
        """``_core`` of rlinf_async/_core/frames.py, ``work`` of rlinf_async/work.py."""
        return room_of(self.module)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, wherever it stands; ``from a import b`` once as ``a.b``."""
        return list(self._imports(self.tree, False))

    def _imports(self, parent: ast.AST, for_annotations: bool) -> Iterator[Import]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                for child in node.body:
                    yield from self._imports(ast.Module([child], []), True)
                for child in node.orelse:
                    yield from self._imports(ast.Module([child], []), for_annotations)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(node.lineno, alias.name, False, for_annotations)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                for alias in node.names:
                    yield Import(node.lineno, f"{origin}.{alias.name}", node.level > 0, for_annotations)
            else:
                if name := _imported_by_call(node):
                    yield Import(getattr(node, "lineno", 0), name, False, for_annotations)
                yield from self._imports(node, for_annotations)

    def _origin(self, node: ast.ImportFrom) -> str:
        parents = self.package.split(".")
        above = parents[: len(parents) - node.level + 1] if node.level else []
        return ".".join([*above, *([node.module] if node.module else [])])

    @cached_property
    def names(self) -> dict[str, str]:
        """What a local name means in full: ``sleep`` → ``time.sleep``."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{self._origin(node)}.{alias.name}"
        return found

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """Line and full name of whatever an import made known, but for ``asyncio.sleep(0)``: that gives way to
        others once, and waits for nothing.
        """
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name | ast.Attribute)]
        harmless = [
            node.func
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and self.meaning(node.func) == "asyncio.sleep"
            and ast.unparse(node).endswith("(0)")
        ]
        return [(node.lineno, self.meaning(node)) for node in nodes if node not in harmless]

    def meaning(self, node: ast.AST) -> str:
        """The full dotted name of an expression, or nothing if it has none."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.meaning(node.value)):
            return f"{owner}.{node.attr}"
        return ""


def _imported_by_call(node: ast.AST) -> str:
    """``torch`` of ``import_module("torch")``; nothing of any other expression."""
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            return name if ast.unparse(function).endswith(("import_module", "__import__")) else ""
    return ""


Broken = Iterator[tuple[int, str]]
"""Line and complaint."""


def room_of(module: str) -> str:
    """``_core`` of rlinf_async._core.frames; ``weights.model`` of what lies in there, which is a room of its own."""
    _, *below = module.split(".")
    if (inner := ".".join(below[:2])) in HEIGHT or (below[:1] == ["weights"] and len(below) > 2):
        return inner
    return below[0] if below else "__init__"


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imports_run_down_only(source: Source) -> Broken:
    """Imports for annotations count: a reader follows them like the others."""
    if not within(source.module, "rlinf_async"):
        return
    if source.room not in HEIGHT:
        yield 1, f"room {source.room!r} has no storey: give it one in STOREYS of tests/test_layers.py"
        return
    for found in source.imports:
        if not within(found.name, "rlinf_async") or source.room == "__init__":
            continue
        room = room_of(found.name)
        if room not in HEIGHT:
            room = "__init__"  # a name out of rlinf_async/__init__.py
        if room != source.room and HEIGHT[room] >= HEIGHT[source.room]:
            yield found.line, f"{source.room} imports {room}, which is not below it"
        if (source.room, room) in STRANGERS:
            yield found.line, f"{source.room} and {room} never import each other"


def the_two_packages_stay_apart(source: Source) -> Broken:
    for found in source.imports:
        of_launcher = within(source.module, "rlinf_async") and within(found.name, "rlinf_launcher")
        if of_launcher and source.room != "_simulation":
            yield found.line, "rlinf_async never imports launcher: start it by name"
        of_ours = within(source.module, "rlinf_launcher") and within(found.name, "rlinf_async")
        if of_ours and room_of(found.name) not in OPEN_TO_LAUNCHER:
            yield found.line, f"launcher imports {found.name}, but may only import {', '.join(OPEN_TO_LAUNCHER)}"


def the_launchers_two_sides_stay_apart(source: Source) -> Broken:
    """The near side runs beside the user, the far side on every node; what they share is the protocol."""
    if not within(source.module, "rlinf_launcher") or source.module == "rlinf_launcher":
        return
    if source.room not in LAUNCHER_HEIGHT and source.room not in FAR:
        yield 1, f"launcher/{source.room} is on neither side: put it into NEAR or FAR of tests/test_layers.py"
        return
    for found in source.imports:
        if not within(found.name, "rlinf_launcher"):
            continue
        if not found.relative:
            yield found.line, "imports inside launcher are relative"
        room = room_of(found.name)
        if room == source.room:
            continue
        if room in FAR or source.room in FAR:
            yield found.line, f"{source.room} imports {room} of the other side"
        elif room in LAUNCHER_HEIGHT and LAUNCHER_HEIGHT[room] >= LAUNCHER_HEIGHT[source.room]:
            yield found.line, f"{source.room} imports {room}, which is not below it"


def libraries_stay_in_their_rooms(source: Source) -> Broken:
    """Annotations may name them anywhere: that loads nothing."""
    for found in source.imports:
        if found.for_annotations:
            continue
        for library, places in ROOMS_OF.items():
            if within(found.name, library) and not source.path.startswith(places):
                yield found.line, f"{library} may only be imported in {', '.join(places) or 'no place'}"
        top = found.name.partition(".")[0]
        if source.path.startswith("rlinf_async/_core/") and top in NOT_IN_CORE:
            yield found.line, f"core is plain state and functions: no {top}"
        of_each_other = any(within(found.name, imported_as(path.removesuffix(".py"))) for path in STANDALONE)
        if source.path in STANDALONE and top not in {*sys.stdlib_module_names, "__future__"} and not of_each_other:
            yield found.line, f"{source.path} stands alone: the standard library, and others that stand alone"


def pickles_are_loaded_in_one_place(source: Source) -> Broken:
    for line, name in source.uses:
        if name in UNPICKLING and source.path != UNPICKLING_ROOM:
            yield line, f"{name}: only {UNPICKLING_ROOM} unpickles, and only what an authenticated peer sent"


def nothing_polls_and_waits_are_cancellable(source: Source) -> Broken:
    for line, name in source.uses:
        if name in FORBIDDEN and (source.path, name) not in EXCUSED:
            yield line, f"{name}: {FORBIDDEN[name]}"


def no_script_silences_a_logger(source: Source) -> Broken:
    for line, name in source.uses:
        if name == "logging.getLogger" and source.path != "rlinf_async/_core/own_logger.py":
            yield line, "dictConfig of a script would silence it: own_logger(__name__)"


def every_task_has_an_owner(source: Source) -> Broken:
    for node in ast.walk(source.tree):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=loop), attr="create_task"))):
                makes = source.meaning(loop) in ("asyncio.get_running_loop", "asyncio.get_event_loop")
            case ast.Expr(value=ast.Call(func=function)):
                makes = source.meaning(function) in ("asyncio.create_task", "asyncio.ensure_future")
            case _:
                continue
        if makes:
            yield node.lineno, "a task that nobody keeps: await it, or start it in a TaskGroup"


def no_bare_except(source: Source) -> Broken:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except also catches cancellation: name the exceptions"


def nothing_listens_everywhere(source: Source) -> Broken:
    documents = [
        node.body[0].value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    ]
    for node in ast.walk(source.tree):
        match node:
            case ast.Constant(value=str(text)) if node not in documents and ("0.0.0.0" in text or "[::]" in text):
                yield node.lineno, "a wildcard: bind to one address (to recognise one, ask ipaddress: is_unspecified)"
            case ast.Call(func=function, args=[ast.Tuple(elts=[ast.Constant(value="" | None), *_]), *_]):
                if ast.unparse(function).endswith(("bind", "create_server", "TCPServer")):
                    yield node.lineno, "an empty host is every interface: bind to one address"


def first_lines_name_a_thing(source: Source) -> Broken:
    """Of modules: a noun phrase or an imperative, whose subject is named."""
    first = (ast.get_docstring(source.tree) or "").partition("\n")[0]
    word = first.partition(" ")[0].rstrip(":,")
    if word in RIDDLES or first.startswith("One of "):
        yield 1, f"the first line begins with {word!r}: say what the module holds, in the field's terms"


@functools.cache
def documented(head: str) -> frozenset[str]:
    """First column of a table of docs/api.md."""
    table = (CHECKOUT / "docs/api.md").read_text().partition(f"| {head} |")[2].partition("\n\n")[0]
    return frozenset(re.findall(r"^\| \[?`([\w.]+)`", table, re.MULTILINE))


def internal_paths_have_an_underscore(source: Source) -> Broken:
    """At the top of the package: what lies below a public package may be internal."""
    module = ".".join(source.module.split(".")[:2])
    if module.startswith("rlinf_async.") and module[12] != "_" and module not in documented("module"):
        yield 1, f"{module} is public and not in docs/api.md: `make docs`, or begin its name with an underscore"


def the_root_shows_what_is_documented(source: Source) -> Broken:
    """What ``dir(rlinf_async)`` shows is its table of names: the imports for annotations."""
    if source.module == "rlinf_async":
        shown = {found.name.rpartition(".")[2]: found.line for found in source.imports if found.for_annotations}
        for name in shown.keys() - documented("name") - {"*"}:
            yield shown[name], f"docs/api.md does not list {name}: `make docs`, or move it to rlinf or torchrl"
        for name in documented("name") - shown.keys():
            yield 1, f"docs/api.md lists {name}, which is not there: `make docs`"


RULES: tuple[Callable[[Source], Broken], ...] = (
    imports_run_down_only,
    the_two_packages_stay_apart,
    the_launchers_two_sides_stay_apart,
    libraries_stay_in_their_rooms,
    pickles_are_loaded_in_one_place,
    nothing_polls_and_waits_are_cancellable,
    no_script_silences_a_logger,
    every_task_has_an_owner,
    no_bare_except,
    nothing_listens_everywhere,
    first_lines_name_a_thing,
    internal_paths_have_an_underscore,
    the_root_shows_what_is_documented,
)


def circles(sources: Iterable[Source]) -> list[list[str]]:
    """Import circles of modules, each from its first module back to it.

    Deferred imports count, and those for annotations.
    """
    sources = list(sources)
    modules = {source.module for source in sources}

    def targets(source: Source) -> set[str]:
        found = {
            name if name in modules else name.rpartition(".")[0] for name in (found.name for found in source.imports)
        }
        return (found & modules) - {source.module}

    edges = {source.module: targets(source) for source in sources}
    found = []
    while edges:
        leaves = {module for module, below in edges.items() if not below & edges.keys()}
        if leaves:  # these are in no circle, and nor is what only leads to them
            edges = {module: below for module, below in edges.items() if module not in leaves}
            continue
        path = [min(edges)]
        while (following := min(edges[path[-1]] & edges.keys())) not in path:
            path.append(following)
        circle = path[path.index(following) :]
        found.append([*circle, following])
        edges = {module: below for module, below in edges.items() if module not in circle}
    return found


@functools.cache
def the_tree() -> list[Source]:
    files = [file for package in ("rlinf_async", "launcher") for file in sorted((CHECKOUT / package).rglob("*.py"))]
    return [Source(str(file.relative_to(CHECKOUT)), file.read_text()) for file in files]


def named(rule: Callable[[Source], Broken]) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_the_house_keeps_the_rule(rule: Callable[[Source], Broken]) -> None:
    broken = [f"{source.path}:{line}: {complaint}" for source in the_tree() for line, complaint in rule(source)]
    assert not broken, "\n".join([f"rule broken: {rule.__name__}", *broken])


def file_names_of_two_meanings(paths: Iterable[str]) -> list[str]:
    names = [name for path in paths if (name := path.rpartition("/")[2]) not in SAME_NAME]
    return sorted({name for name in names if names.count(name) > 1})


def test_a_file_name_has_one_meaning() -> None:
    assert file_names_of_two_meanings(source.path for source in the_tree()) == []


def test_a_file_name_of_two_meanings_is_found() -> None:
    paths = ["launcher/job.py", "launcher/daemon/names.py", "launcher/daemon/__init__.py", "launcher/__init__.py"]
    assert file_names_of_two_meanings([*paths, "rlinf_async/_core/names.py"]) == ["names.py"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not (found := circles(the_tree())), "\n".join(" -> ".join(circle) for circle in found)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those that are no part of another one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from functions(node)


def repetitions(sources: Iterable[Source]) -> list[str]:
    """Functions that share more than ten lines in a row, whatever their layout and comments."""
    seen: dict[tuple[str, ...], str] = {}
    found = set()
    for source in sources:
        for node in functions(source.tree):
            body = node.body[ast.get_docstring(node) is not None :]
            lines = [line.strip() for part in body for line in ast.unparse(part).splitlines()]
            place = f"{source.path}:{node.lineno} {node.name}"
            for start in range(len(lines) - 10):
                first = seen.setdefault(tuple(lines[start : start + 11]), place)
                if first != place:
                    found.add(f"{first} and {place}")
    return sorted(found)


def test_no_two_functions_share_more_than_ten_lines() -> None:
    assert repetitions(the_tree()) == []


def test_functions_that_share_eleven_lines_are_found_and_ten_are_not() -> None:
    steps = [f"    step({number})  # {number}" for number in range(11)]
    first, second = "\n".join(["def f():", *steps]), "\n".join(["async def g(x):", '    """Says more."""', *steps, ""])
    assert repetitions([Source("a.py", first), Source("b.py", second)]) == ["a.py:1 f and b.py:1 g"]
    assert repetitions([Source("a.py", first), Source("b.py", second.replace("step(5)", "leap(5)"))]) == []


@pytest.mark.parametrize("module", ["rlinf_async", "rlinf_launcher.cli", "rlinf_launcher.daemon"])
def test_importing_it_loads_neither_torch_nor_grpc_nor_numpy(module: str) -> None:
    if not any(source.module == module for source in the_tree()):
        pytest.skip(f"there is no {module} yet")
    script = f"import sys, {module}\nprint(*{{'torch', 'grpc', 'numpy'}} & set(sys.modules))"
    if module == "rlinf_async":
        light = documented("name") - {"SyncReport", "WorkerWeightSyncScheme", "follow", "publish"}
        script = f"from rlinf_async import {', '.join(light)}\n{script}"
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


TABLE = f"if TYPE_CHECKING:\n    from x import {', '.join(sorted(documented('name')))}"

# Each rule sees what it is there for, on the line where it stands, and lets the rest pass (line 0).
CASES = [
    (imports_run_down_only, "rlinf_async/_core/pending_calls.py", "import rlinf_async._wire.unix", 1),
    (imports_run_down_only, "rlinf_async/work.py", "def f():\n    from rlinf_async.handle import Handle", 2),
    (imports_run_down_only, "rlinf_async/work.py", "from .group import WorkerGroup", 1),
    (imports_run_down_only, "rlinf_async/work.py", "from rlinf_async import cluster", 1),
    (imports_run_down_only, "rlinf_async/work.py", "from rlinf_async import Worker", 1),
    (imports_run_down_only, "rlinf_async/_core/pending_calls.py", "from .._wire import unix", 1),
    (imports_run_down_only, "rlinf_async/profiling/config.py", "from rlinf_async.hardware import Hardware", 1),
    (imports_run_down_only, "rlinf_async/_transports/link.py", "from rlinf_async._wire import unix", 1),
    (imports_run_down_only, "rlinf_async/work.py", "import_module('rlinf_async.group')", 1),
    (imports_run_down_only, "rlinf_async/attic.py", "", 1),
    (imports_run_down_only, "rlinf_async/weights/attic/slab.py", "", 1),
    (imports_run_down_only, "rlinf_async/weights/model/source.py", "from rlinf_async.weights.memory import store", 1),
    (imports_run_down_only, "rlinf_async/weights/model/source.py", "from rlinf_async.weights import Publisher", 1),
    (imports_run_down_only, "rlinf_async/weights/memory/store.py", "from rlinf_async.weights.model import source", 0),
    (imports_run_down_only, "rlinf_async/_core/pending_calls.py", "from .frames import Status", 0),
    (imports_run_down_only, "rlinf_async/handle.py", "from rlinf_async.work import Work", 0),
    (imports_run_down_only, "rlinf_async/work.py", "if TYPE_CHECKING:\n    from rlinf_async.group import Group", 2),
    (imports_run_down_only, "rlinf_async/work.py", "if TYPE_CHECKING: ...\nelse:\n    from .group import f", 3),
    (imports_run_down_only, "rlinf_async/__init__.py", "from rlinf_async.cluster import Cluster", 0),
    (the_two_packages_stay_apart, "rlinf_async/cluster.py", "from rlinf_launcher import daemon", 1),
    (the_two_packages_stay_apart, "launcher/job.py", "from rlinf_async.cluster import Cluster", 1),
    (the_two_packages_stay_apart, "launcher/job.py", "import rlinf_async", 1),
    (the_two_packages_stay_apart, "launcher/job.py", "from rlinf_async import errors", 0),
    (the_two_packages_stay_apart, "launcher/job.py", "from rlinf_async._wire.unix import Connection", 0),
    (the_launchers_two_sides_stay_apart, "launcher/job.py", "from .daemon import node", 1),
    (the_launchers_two_sides_stay_apart, "launcher/job.py", "from .cli import main", 1),
    (the_launchers_two_sides_stay_apart, "launcher/daemon/__main__.py", "def f():\n    from ..remote import host", 2),
    (the_launchers_two_sides_stay_apart, "launcher/job.py", "from rlinf_launcher.cli.hosts_file import read", 1),
    (the_launchers_two_sides_stay_apart, "launcher/attic.py", "", 1),
    (the_launchers_two_sides_stay_apart, "launcher/cli/check.py", "from ..job import Job", 0),
    (libraries_stay_in_their_rooms, "rlinf_async/_wire/unix.py", "import grpc.aio", 1),
    (libraries_stay_in_their_rooms, "launcher/daemon/node.py", "def f():\n    from grpc import aio", 2),
    (libraries_stay_in_their_rooms, "launcher/daemon/node.py", "__import__('torch')", 1),
    (libraries_stay_in_their_rooms, "rlinf_async/_client/client.py", "import torch", 1),
    (libraries_stay_in_their_rooms, "rlinf_async/_core/tree.py", "def f():\n    import torch.nn as nn", 2),
    (libraries_stay_in_their_rooms, "rlinf_async/_core/pending_calls.py", "import asyncio", 1),
    (libraries_stay_in_their_rooms, "rlinf_async/_core/pending_calls.py", "from socket import socket", 1),
    (libraries_stay_in_their_rooms, "rlinf_async/worker.py", "from multiprocessing import reduction", 1),
    (libraries_stay_in_their_rooms, "launcher/daemon/guardian.py", "import psutil", 1),
    (libraries_stay_in_their_rooms, "launcher/die_with_parent.py", "from .source_text import Text", 1),
    (libraries_stay_in_their_rooms, "rlinf_async/_wire/grpc.py", "import grpc", 0),
    (libraries_stay_in_their_rooms, "rlinf_async/_transports/tensors.py", "import torch", 0),
    (libraries_stay_in_their_rooms, "rlinf_async/_core/tree.py", "if typing.TYPE_CHECKING:\n    import torch", 0),
    (libraries_stay_in_their_rooms, "rlinf_async/_core/pending_calls.py", "from .segment import socket", 0),
    (pickles_are_loaded_in_one_place, "rlinf_async/_wire/unix.py", "import pickle\npickle.loads(b'')", 2),
    (pickles_are_loaded_in_one_place, "rlinf_async/_wire/unix.py", "import cloudpickle as c\nf(c.loads)", 2),
    (pickles_are_loaded_in_one_place, "launcher/daemon/node.py", "from pickle import loads as read\nread(b'')", 2),
    (pickles_are_loaded_in_one_place, "launcher/daemon/node.py", "import pickle\nclass R(pickle.Unpickler): ...", 2),
    (pickles_are_loaded_in_one_place, "rlinf_async/worker.py", "import torch\ntorch.load('x')", 2),
    (pickles_are_loaded_in_one_place, "rlinf_async/_core/codec.py", "import pickle\npickle.loads(b'')", 0),
    (pickles_are_loaded_in_one_place, "rlinf_async/_transports/tensors.py", "import pickle\npickle.dumps(0)", 0),
    (pickles_are_loaded_in_one_place, "launcher/daemon/node.py", "import json\njson.loads('0')", 0),
    (no_script_silences_a_logger, "launcher/job.py", "import logging\nlogger = logging.getLogger('x')", 2),
    (no_script_silences_a_logger, "rlinf_async/_core/own_logger.py", "import logging\nlogging.getLogger('x')", 0),
    (nothing_polls_and_waits_are_cancellable, "launcher/daemon/node.py", "import time\ntime.sleep(1)", 2),
    (
        nothing_polls_and_waits_are_cancellable,
        "launcher/daemon/node.py",
        "from asyncio import sleep\nawait sleep(1)",
        2,
    ),
    (nothing_polls_and_waits_are_cancellable, "launcher/daemon/node.py", "import asyncio\nasyncio.wait_for(f, 1)", 2),
    (nothing_polls_and_waits_are_cancellable, "launcher/daemon/node.py", "import asyncio\nawait asyncio.sleep(0)", 0),
    (nothing_polls_and_waits_are_cancellable, "launcher/daemon/node.py", "import asyncio\nawait asyncio.sleep(0.1)", 2),
    (nothing_polls_and_waits_are_cancellable, "launcher/remote/sweeper.py", "import time\ntime.sleep(0.1)", 0),
    (every_task_has_an_owner, "launcher/daemon/node.py", "import asyncio\nasyncio.create_task(f())", 2),
    (
        every_task_has_an_owner,
        "launcher/daemon/node.py",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
        2,
    ),
    (every_task_has_an_owner, "launcher/daemon/node.py", "import asyncio\ntask = asyncio.create_task(f())", 0),
    (every_task_has_an_owner, "launcher/daemon/node.py", "group.create_task(f())", 0),
    (no_bare_except, "launcher/daemon/node.py", "try:\n    f()\nexcept:\n    pass", 3),
    (no_bare_except, "launcher/daemon/node.py", "try:\n    f()\nexcept OSError:\n    pass", 0),
    (first_lines_name_a_thing, "rlinf_async/work.py", '"""Who waits for what."""', 1),
    (first_lines_name_a_thing, "rlinf_async/work.py", '"""Waits of a process."""', 0),
    (internal_paths_have_an_underscore, "rlinf_async/attic.py", "", 1),
    (internal_paths_have_an_underscore, "rlinf_async/attic/slab.py", "", 1),
    (internal_paths_have_an_underscore, "rlinf_async/_attic.py", "", 0),
    (internal_paths_have_an_underscore, "rlinf_async/placement/packed.py", "", 0),
    (the_root_shows_what_is_documented, "rlinf_async/__init__.py", f"{TABLE}\n    from x import Odd as Odd", 3),
    (the_root_shows_what_is_documented, "rlinf_async/__init__.py", TABLE.replace(" Cluster,", ""), 1),
    (the_root_shows_what_is_documented, "rlinf_async/__init__.py", TABLE, 0),
    (nothing_listens_everywhere, "launcher/daemon/node.py", "server.add_secure_port('0.0.0.0:0', keys)", 1),
    (nothing_listens_everywhere, "launcher/daemon/node.py", "f'[::]:{port}'", 1),
    (nothing_listens_everywhere, "launcher/daemon/node.py", "sock.bind(('', 0))", 1),
    (nothing_listens_everywhere, "launcher/daemon/node.py", "sock.bind(('127.0.0.1', 0))", 0),
    (nothing_listens_everywhere, "launcher/daemon/node.py", "'''Never on 0.0.0.0.'''", 0),
]


@pytest.mark.parametrize(("rule", "path", "text", "line"), CASES)
def test_a_rule_sees_what_it_is_there_for(rule: Callable[[Source], Broken], path: str, text: str, line: int) -> None:
    assert [found for found, _ in rule(Source(path, text))][:1] == ([line] if line else [])


def test_every_excuse_is_still_needed() -> None:
    uses = {(source.path, name) for source in the_tree() for _, name in source.uses}
    assert set(EXCUSED) <= uses


def test_every_rule_is_shown_to_bite_and_to_let_pass() -> None:
    for rule in RULES:
        assert {bool(line) for tested, *_, line in CASES if tested is rule} == {True, False}, rule.__name__


def test_a_circle_is_found_also_through_a_deferred_import_and_a_package() -> None:
    house = [
        Source("rlinf_async/_core/__init__.py", "from .pending_calls import Tally"),
        Source("rlinf_async/_core/pending_calls.py", "from rlinf_async._core import frames"),
        Source("rlinf_async/_core/frames.py", "def f():\n    from rlinf_async._core import Tally"),
        Source("rlinf_async/work.py", "from rlinf_async._core import calls"),
        Source("rlinf_async/errors.py", ""),
    ]
    found = ["rlinf_async._core", "rlinf_async._core.pending_calls", "rlinf_async._core.frames", "rlinf_async._core"]
    assert circles(house) == [found]
    for_annotations = "if TYPE_CHECKING:\n    from rlinf_async._core import Tally"
    house[2] = Source("rlinf_async/_core/frames.py", for_annotations)
    assert circles(house) == [found]
    house[2] = Source("rlinf_async/_core/frames.py", "")
    assert circles(house) == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_a_page_for_developers_names_files_that_exist(page: str) -> None:
    text = (CHECKOUT / page).read_text()
    named = {found for found in re.findall(r"`([\w./]+)`", text) if found.endswith((".py", ".md"))}
    assert named, f"{page} names no file"
    roots = (CHECKOUT, CHECKOUT / "rlinf_async")
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


def test_the_floor_plan_has_every_room() -> None:
    plan = (CHECKOUT / "docs" / "architecture.md").read_text().partition("## Glossary")[0]
    names = {room.partition(".")[0] for room in HEIGHT} - {"__init__", "__main__"}
    assert sorted(room for room in names if not re.search(rf"^      .*(?<!\w){room}\b", plan, re.MULTILINE)) == []


def test_every_package_is_installed_under_its_import_name() -> None:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        installed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    assert sorted(installed) == sorted(source.module for source in the_tree() if source.path.endswith("__init__.py"))
