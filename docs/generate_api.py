"""Writes docs/api.md from the code: ``make docs``, or ``python -m docs.generate_api``.

Names come from the tables of public names, signatures from the functions, texts from the first paragraphs of
docstrings.  Annotations stay as they are written, so that every version of Python gives the same page.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "rlinf_async"
PAGE: Final = Path(__file__).parent / "api.md"

SUBJECTS: Final = {
    "Run and nodes": ("cluster", "_cluster", "address", "configuration"),
    "Workers": ("worker", "_worker"),
    "Groups and their calls": ("group", "_group", "any_rank", "handle", "outcome", "stream", "work"),
    "Channels": ("channel", "_channels", "experience"),
    "Weights": ("weights",),
    "Placement and devices": ("placement", "hardware"),
    "Traces and profiles": ("_trace", "profiling"),
    "Errors": ("errors",),
}
"""Sections of the root's names, with the modules that define these names."""

RESULTS: Final = {
    "Worker": (
        "GroupSpec",
        f"{PACKAGE}._worker.spec",
        "Result of `create_group(...)` of a worker class; not imported.",
    ),
    "follow": (
        "Following",
        f"{PACKAGE}.weights",
        f"Result of `follow(...)`; for annotations, it is in `{PACKAGE}.weights`.",
    ),
    "publish": (
        "Publication",
        f"{PACKAGE}.weights",
        f"Result of `publish(...)`; for annotations, it is in `{PACKAGE}.weights`.",
    ),
}
"""Classes that users do not import but whose methods they call, by the name that returns them."""

IN_FULL: Final = {
    "Cluster",
    "GroupSpec.launch",
    "Worker.create_group",
    "Channel.create",
    "Experience.create",
    "publish",
    "follow",
}
"""Names whose whole docstring is shown."""

WITH_MEMBERS: Final = (f"{PACKAGE}.engines", f"{PACKAGE}.weights")
"""Modules whose classes are shown with their methods and attributes, as the root's are."""

INTRODUCTION: Final = """\
# Public names

This page lists every public name with its signature and the first paragraph of its docstring, or for the most
important names the whole docstring, as `help()` shows it. `make docs` writes the page from the code, and the suite
compares the two. Names with an underscore in their path may change, except the [attributes of a worker](#worker) that
RLinf's convention makes public, such as `self._rank`.

Importing `rlinf_async` loads nothing: each name is loaded on first use, and torch only with the names that need it.
`from rlinf_async import ...` finds the names of this first table, and also those of `rlinf_async.rlinf` and
`rlinf_async.torchrl`. The methods of a channel, `send`, `recv`, `broadcast` and similar ones block in plain code, and
return a `Work` to await in a coroutine; if a signature says `Any`, the text describes the result. A `WorkerGroup`
also has the public methods of its worker class; a method named `call` replaces the group's own.

[porting-from-rlinf.md](porting-from-rlinf.md) explains RLinf's names, and [torchrl.md](torchrl.md) those of TorchRL.
`rlinf_async.torchrl.collectors.CollectorScheme`, which adapts a scheme to the collectors of released TorchRL, needs
the extra `torchrl`.
"""

TYPES: Final = """\
## Types

Type checkers check `Rollout.create_group(...)` like the constructor. `launch()`, `find_group()` and
`WorkerGroup.from_group_name()` return a `WorkerGroup[Rollout]`. The type parameter is optional, as are those of
`Handle` and `Stream`.

- `group.call(Rollout.step, x)` does the same as `group.step(x)`, also on views, and is the form for `mypy --strict`:
  its arguments are checked, and it is a `Handle[float]` if `step` returns a float (by `def` or `async def`), or a
  `Stream[T]`. Editors complete `Rollout.` in it. `each(values)` has the type of a single value. Class and static
  methods have no `self` and are called as `group.named(x)`.
- `group.step(x)` is `Any` to a type checker, and editors cannot complete it from the source: a type cannot express
  that an object has the methods of another type with other results. If the group exists, as in Jupyter and debuggers,
  its methods are completed, with the worker's signatures and docstrings; `inspect.signature(group.step)` returns
  them, too.
- The result of a method that blocks in plain code and returns a `Work` in coroutines depends on the caller, which
  types cannot express. `rlinf_async.work` has types for these results: an `IntOrWork` can be used as an int and
  awaited for one; likewise `FloatOrWork`, `ListOrWork[T]` and `DictOrWork[T]`. Lookups of groups return a
  `WorkerGroup`, which can be awaited anyway. `NoneOrWork` is `Work[None]`; in plain code, it is None and has no
  methods. `BoolOrWork` and `ValueOrWork` are `Any`.
"""


def make_page() -> str:
    """Return the whole page."""
    root = table_of(PACKAGE)
    modules = list(public_modules())
    parts = [INTRODUCTION, *_index(root), "## Modules\n", "| module | what it holds |", "|---|---|"]
    parts += [f"| `{path}` | {first_paragraph(importlib.import_module(path), sentence=True)} |" for path in modules]
    parts += ["", TYPES.rstrip()]
    for subject, homes in SUBJECTS.items():
        parts.append(f"\n## {subject}\n")
        for name, home in names_of(root, homes).items():
            parts += _section({name: home}, PACKAGE, members=True)
            if name == "Worker":
                parts += _conventional_attributes(root_module().Worker)
            if name in RESULTS:
                result, path, origin = RESULTS[name]
                parts += _section({result: path}, path, members=True, origin=origin)
    shown = {*root, *(result for result, _, _ in RESULTS.values())}
    for path in modules:
        further = {name: home for name, home in table_of(path).items() if name not in shown}
        if further:
            parts += [f"\n## Further names of `{path}`\n", *_section(further, path, members=path in WITH_MEMBERS)]
            shown |= further.keys()
    return "\n".join(parts).rstrip() + "\n"


def _index(root: dict[str, str]) -> Iterator[str]:
    yield "| name | what it is |"
    yield "|---|---|"
    for homes in SUBJECTS.values():
        for name in names_of(root, homes):
            yield f"| [`{name}`](#{name.lower()}) | {first_paragraph(getattr(root_module(), name), sentence=True)} |"
    yield ""


def _section(names: dict[str, str], path: str, *, members: bool, origin: str = "") -> Iterator[str]:
    for name, home in names.items():
        found = getattr(importlib.import_module(path), name)
        yield f"### `{name}`\n"
        if origin:
            yield origin + "\n"
        if not inspect.isclass(found) and not inspect.isfunction(found):
            yield describe_value(home, name, found) + "\n"
        elif found.__name__ != name:
            yield f"The same as `{found.__name__}`.\n"
        else:
            yield f"```python\n{signature_of(found, name)}\n```\n\n{first_paragraph(found)}\n{_further_text(found)}"
        if inspect.isclass(found) and members and (lines := list(members_of(found))):
            yield "\n".join(lines) + "\n"


# -- names ------------------------------------------------------------------------------------------------------------


def root_module() -> ModuleType:
    return importlib.import_module(PACKAGE)


def table_of(path: str) -> dict[str, str]:
    """Return the public names of a package, each with its module (``from home import Name as Name``)."""
    file = inspect.getsourcefile(importlib.import_module(path))
    assert file is not None
    if not file.endswith("__init__.py"):
        return {}
    imports = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom)]
    pairs = [(each.asname, str(node.module)) for node in imports for each in node.names if each.asname == each.name]
    return {str(name): home for name, home in sorted(pairs, key=lambda pair: str(pair[0]).lower())}


def names_of(root: dict[str, str], homes: Iterable[str]) -> dict[str, str]:
    """Return the root's names that these modules define, in the order of the modules.

    Raises:
        LookupError: a name of the root belongs to no subject.
    """
    known = {home for subject in SUBJECTS.values() for home in subject}
    for name, path in root.items():
        if path.split(".")[1] not in known:
            raise LookupError(f"{name} of {path} has no subject: add {path.split('.')[1]!r} to SUBJECTS in {__file__}")
    return {name: path for home in homes for name, path in root.items() if path.split(".")[1] == home}


def public_modules() -> Iterator[str]:
    """Yield the modules and packages below the root whose names have no underscore."""
    for entry in sorted(Path(str(root_module().__file__)).parent.iterdir()):
        if not entry.name.startswith("_") and (entry.suffix == ".py" or (entry / "__init__.py").is_file()):
            yield f"{PACKAGE}.{entry.stem}"


# -- signatures and texts ---------------------------------------------------------------------------------------------


def signature_of(found: Any, name: str) -> str:
    """Return the signature as written: ``def name(parameters) -> result``, ``class Name(parameters)``."""
    if not inspect.isclass(found):
        line = f"{'async ' if inspect.iscoroutinefunction(found) else ''}def {name}"
        return line + _parameters(found, skip=0)
    bases = f"({', '.join(base.__name__ for base in found.__bases__)})" if issubclass(found, BaseException) else ""
    if issubclass(found, enum.Enum):
        return "\n".join([f"class {name}(Enum):", *(f"    {each.name} = {each.value!r}" for each in found)])
    constructor = next((owner.__dict__["__init__"] for owner in found.__mro__ if "__init__" in owner.__dict__), None)
    if bases or not getattr(constructor, "__module__", "").startswith(PACKAGE) or is_internal(constructor):
        return f"class {name}{bases}"
    return f"class {name}" + _parameters(constructor, skip=1).removesuffix(" -> None")


def is_internal(constructor: Any) -> bool:
    """True if the docstring says that users do not call it."""
    return str(constructor.__doc__ or "").startswith("Internal;")


def _parameters(function: Any, *, skip: int) -> str:
    """Return ``(a: int, *, b: str = 'x') -> None``, with one parameter per line if the line would be long."""
    signature = inspect.signature(function)
    result = "" if signature.return_annotation is inspect.Signature.empty else f" -> {signature.return_annotation}"
    parts: list[str] = []
    star = False
    for each in list(signature.parameters.values())[skip:]:
        if each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        mark = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        annotation = "" if each.annotation is each.empty else f": {each.annotation}"
        default = "" if each.default is each.empty else f" = {_spell(each.default)}"
        parts.append(mark + each.name + annotation + default)
    line = f"({', '.join(parts)}){result}"
    return line if len(line) < 100 else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _spell(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, Path):
        return f"Path({str(default)!r})"
    text = repr(default)
    return getattr(default, "__name__", "...") if text.startswith("<") else text


def first_paragraph(found: Any, *, sentence: bool = False) -> str:
    """Return a docstring's first paragraph as Markdown, or only its first sentence without the full stop."""
    text = inspect.getdoc(found) or ""
    if dataclasses.is_dataclass(found) and text.startswith(f"{getattr(found, '__name__', '')}("):
        text = ""  # dataclass wrote it
    return as_markdown(text, sentence=sentence)


def _further_text(found: Any) -> str:
    """Return the docstring after its first paragraph, as ``help()`` shows it, for names in ``IN_FULL``."""
    text = (inspect.getdoc(found) or "").partition("\n\n")[2].replace("``", "`")
    return f"\n```text\n{text}\n```\n" if text and found.__qualname__ in IN_FULL else ""


def as_markdown(text: str, *, sentence: bool = False) -> str:
    paragraph = " ".join(textwrap.dedent(text).strip().partition("\n\n")[0].split()).replace("``", "`")
    if re.match(r"(Args|Attributes|Raises|Returns|Example): ", paragraph):
        return ""
    if paragraph.endswith("::"):
        paragraph = paragraph[:-2] + "."
    return paragraph.partition(". ")[0].rstrip(".").replace("|", "\\|") if sentence else paragraph


def describe_value(home: str, name: str, found: Any) -> str:
    """Return the string below an assignment in its module, or the docstring of a submodule."""
    if inspect.ismodule(found):
        return first_paragraph(found)
    module = importlib.import_module(home)
    while name in (table := table_of(module.__name__)):
        module = importlib.import_module(table[name])
    return as_markdown(texts_of(Path(str(module.__file__)).read_text()).get(name, ("", ""))[1])


def texts_of(source: str) -> dict[str, tuple[str, str]]:
    """Return the annotation and the string below each assignment in a module, or in its one class, by name."""
    body: list[ast.stmt] = ast.parse(textwrap.dedent(source)).body
    if len(body) == 1 and isinstance(body[0], ast.ClassDef):
        body = body[0].body
    found: dict[str, tuple[str, str]] = {}
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if is_text else ""  # type: ignore[attr-defined]
        found |= {target.id: (annotation, text) for target in targets if isinstance(target, ast.Name)}
    return found


# -- members ----------------------------------------------------------------------------------------------------------


def members_of(cls: type) -> Iterator[str]:
    """Return lines for the public attributes of a class, including those of bases without a section."""
    sections = {getattr(root_module(), name) for name in table_of(PACKAGE)}
    owners = [owner for owner in cls.__mro__ if owner.__module__.startswith(PACKAGE)]
    above = [owner for owner in owners[1:] if owner in sections]
    elsewhere = {each for owner in above for each in owner.__mro__}
    own = [owner for owner in owners if owner not in elsewhere]
    attributes: dict[str, tuple[str, str]] = {}
    for owner in reversed(own):
        attributes |= texts_of(inspect.getsource(owner))
    names = {name for owner in own for name in vars(owner)} | attributes.keys()
    for name in sorted((name for name in names if not name.startswith("_")), key=lambda name: (name.lower(), name)):
        member = next((vars(owner)[name] for owner in own if name in vars(owner)), None)
        line, text = _member(name, member, attributes.get(name, ("", "")))
        function = getattr(member, "__func__", member)
        further = _further_text(function) if inspect.isfunction(function) and function.__name__ == name else ""
        yield f"- `{line}`" + (f": {text}" if text else "") + textwrap.indent("\n" + further if further else "", "  ")
    if above and not issubclass(cls, BaseException):
        yield f"- and what [`{above[0].__name__}`](#{above[0].__name__.lower()}) has"


def _conventional_attributes(worker: type) -> Iterator[str]:
    """Return a table of a worker's attributes that are public although their names begin with an underscore."""
    yield "Public by RLinf's convention, and as steady as names without an underscore:\n"
    yield "| in a worker | what it is |"
    yield "|---|---|"
    for name, (annotation, text) in texts_of(inspect.getsource(worker)).items():
        if name.startswith("_") and text:
            yield f"| `self.{name}: {annotation}` | {as_markdown(text)} |"
    yield ""


def _member(name: str, member: Any, attribute: tuple[str, str]) -> tuple[str, str]:
    if isinstance(member, property | functools.cached_property):
        getter: Callable[..., Any] = member.fget if isinstance(member, property) else member.func  # type: ignore[assignment]
        return f"{name}: {inspect.signature(getter).return_annotation}", first_paragraph(getter)
    static = isinstance(member, staticmethod | classmethod)
    function = member.__func__ if static else member
    if inspect.isfunction(function) and function.__name__ != name:
        return name, f"The same as `{function.__name__}`."
    if inspect.isfunction(function):
        skip = 0 if isinstance(member, staticmethod) else 1
        line = " ".join(_parameters(function, skip=skip).split()).replace("( ", "(").replace(", )", ")")
        words = "async " if inspect.iscoroutinefunction(function) else ""
        return f"{words}{name}{line}", first_paragraph(function)
    return f"{name}: {attribute[0]}" if attribute[0] else name, as_markdown(attribute[1])


if __name__ == "__main__":
    PAGE.write_text(make_page())
