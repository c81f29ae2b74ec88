"""Bundles: zip files that hold a ``RunSnapshot`` and are readable only by their owner; the reader does not trust them.

run.json                     the run, its status and verdict, and the list of missing parts
logs/rollout/rank_0.err      the end of a log
logs/recorder/10001.ring     a flight recorder, next to the black boxes
"""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rlinf_async._core.masking import masked_texts
from rlinf_async._recorder.run_files import is_of_a_run
from rlinf_async.errors import RLinfAsyncError

from .fresh_file import fresh_file
from .run_snapshot import MAX_BYTES, RunSnapshot

_MAX_FILES: Final = 100_000
_FORMAT: Final = 1
_FACTS: Final = "run.json"
_FILES: Final = "logs/"
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "run": (str,),
    "taken_at": (int, float),
    "is_alive": (bool, type(None)),
    "status": (dict, type(None)),
    "verdict": (dict, type(None)),
    "missing": (dict,),
}


class BadBundle(RLinfAsyncError):
    """The file is not a run's bundle, or the bundle is incomplete."""


def write_bundle(snapshot: RunSnapshot, path: Path, deadline: float = float("inf")) -> None:
    """Write a bundle atomically, replacing an existing file.  Raises OSError.

    Files not written by ``deadline``, a time on ``time.monotonic``, are named in ``snapshot.missing``.
    """
    with fresh_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _write_files(snapshot, archive, deadline)
        # Scripts' command lines may contain secrets, and so may the names in their waits.
        facts = {"format": _FORMAT} | {name: masked_texts(getattr(snapshot, name)) for name in _FIELDS}
        archive.writestr(_FACTS, json.dumps(facts, default=str))


def _write_files(snapshot: RunSnapshot, archive: zipfile.ZipFile, deadline: float) -> None:
    # Write rings last, because they are the largest files.
    for path in sorted(snapshot.files, key=lambda each: (each.endswith(".ring"), each)):
        if time.monotonic() > deadline:
            snapshot.missing[path] = "there was no time to write it into the bundle"
            continue
        archive.writestr(_FILES + path, snapshot.files[path])


def read_bundle(path: Path) -> RunSnapshot:
    """Return the snapshot in a bundle.  Raises OSError, or BadBundle if the file is not a bundle or is too large."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in _checked(archive)}
            facts = json.loads(archive.read(entries.pop(_FACTS)))
            snapshot = RunSnapshot(**_checked_facts(facts))
            for name, entry in entries.items():
                snapshot.add(name.removeprefix(_FILES), archive.read(entry))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadBundle(f"{path} is no whole bundle: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadBundle(f"{path} is no bundle of a run: {type(error).__name__}: {error}") from error
    return snapshot


def _checked(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    """Yield the entries; raise ValueError for a path outside the logs, or if they exceed the size limit."""
    entries, left, seen = archive.infolist(), MAX_BYTES, set()
    if len(entries) > _MAX_FILES:
        raise ValueError(f"it has {len(entries)} files")
    for entry in entries:
        name = entry.filename
        if name in seen or not (name == _FACTS or (name.startswith(_FILES) and is_of_a_run(name[len(_FILES) :]))):
            raise ValueError(f"a bundle has no file {name!r}, or not twice")
        seen.add(name)
        left -= entry.file_size  # zipfile never reads more than this size from the entry
        if left < 0:
            raise ValueError(f"unpacked, it has more than {MAX_BYTES} bytes")
        yield entry


def _checked_facts(facts: dict[str, Any]) -> dict[str, Any]:
    if facts["format"] != _FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, this rlinf-ctl reads {_FORMAT}")
    for name, kinds in _FIELDS.items():
        if not isinstance(facts[name], kinds):
            raise ValueError(f"{name} in {_FACTS} is {type(facts[name]).__name__}")
    return {name: facts[name] for name in _FIELDS}
