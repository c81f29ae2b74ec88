"""Selection of the user's environment variables that every node receives, by patterns, ``-e`` and env files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from rlinf_async._core.masking import shown as shown
from rlinf_async.errors import ConfigError

from ..source_text import lines

EXPORTED = (
    "NCCL_*",
    "GLOO_*",
    "UCX_*",
    "CUDA_*",
    "OMP_NUM_THREADS",
    "MKL_*",
    "TORCH_*",
    "PYTORCH_*",
    "HF_*",
    "TRANSFORMERS_*",
    "WANDB_*",
    "MUJOCO_*",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "PYTHONDEVMODE",
    "PYTHONUTF8",
    "RLINF_*",
    "LANG",
    "LC_*",
)
"""Patterns of variables that every node receives by default."""

OWN_TO_A_MACHINE = (
    "CUDA_VISIBLE_DEVICES",
    "RLINF_NODE_RANK",
    "*_proxy",
    "*_PROXY",
    "PATH",
    "HOME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "TMPDIR",
    "XDG_*",
    "SSH_*",
    "_",
)
"""Patterns of variables that describe one machine; only ``-e NAME`` exports them, and no pattern does, even ``*``."""

RESERVED = ("RLINF_RUN_ID", "RLINF_NODE_SOCKET")  # variables that the launcher sets in each process

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def chosen(
    environ: Mapping[str, str],
    patterns: Iterable[str] = (),
    files: Iterable[Path] = (),
    named: Iterable[tuple[str, str | None]] = (),
) -> dict[str, str]:
    """Return the variables for every node, sorted by name.  Raises ConfigError.

    Shell ``patterns`` add to ``EXPORTED``; a pattern that begins with ``!`` excludes names.  Later ``files`` override
    earlier ones and ``environ``; ``named`` (``-e``) overrides all, and its None stands for ``environ``'s value.
    """
    patterns = tuple(patterns)
    wanted = EXPORTED + tuple(each for each in patterns if not each.startswith("!"))
    kept = OWN_TO_A_MACHINE + RESERVED + tuple(each[1:] for each in patterns if each.startswith("!"))
    result = {
        name: value
        for name, value in environ.items()
        if is_name(name) and _matches(name, wanted) and not _matches(name, kept)
    }
    for path in files:
        result.update(read_env_file(path))
    for name, value in named:
        if value is None and name not in environ:
            raise ConfigError(f"-e {name}: {name} is not set here\n  fix: set it, or write -e {name}=value")
        result[name] = environ[name] if value is None else value
    for name in RESERVED:
        if name in result:
            raise ConfigError(f"{name} is set by the launcher\n  fix: do not give it with -e or --env-file")
    return dict(sorted(result.items()))


def read_env_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the variables in a file of ``NAME=value`` lines, which may have ``export``, comments and quotes.

    Quotes around a whole value are removed; nothing is expanded.  Raises ConfigError with ``file:line:col``.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the variables: {error}\n  fix: check --env-file") from error
    result = {}
    for line in lines(text, str(path)):
        words = line.text.strip().removeprefix("export ").strip()
        if not words or words.startswith("#"):
            continue
        name, equals, value = words.partition("=")
        if not equals or not is_name(name):
            raise line.error(f"{words.partition('=')[0]!r} is not NAME=value", "write one NAME=value per line")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        result[name] = value[1:-1] if quoted else value
    return result


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
