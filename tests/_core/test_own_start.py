from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlinf_async._cluster.launch import script_environment
from rlinf_async._core import own_start


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_start, "_start", own_start._start)


def test_variables_that_were_set_changed_or_deleted_since_the_start_are_changes_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"KEPT": "1", "NEW": "2", "OTHER": "\udcff", "RLINF_TRACE": "f", "RLINF_NODE_SOCKET": "s"}
    monkeypatch.setattr(os.environ, "_data", {os.fsencode(name): os.fsencode(value) for name, value in now.items()})
    own_start.begin({"KEPT": "1", "OTHER": "3", "GONE": "4"}, {})
    assert own_start.changed_variables() == {b"NEW": b"2", b"OTHER": b"\xff", b"GONE": None}
    own_start.begin(now, {b"EARLIER": None, b"KEPT": b"1"})  # a worker, whose launch carried these
    assert own_start.changed_variables() == {b"EARLIER": None, b"KEPT": b"1"}
    del os.environ["KEPT"]
    assert own_start.changed_variables() == {b"EARLIER": None, b"KEPT": None}


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (b"A=1\0B=x=y\0A=2\0", {"A": "1", "B": "x=y"}),
        (b"A=1\0LC_CTYPE=C\0", {"A": "1", "LC_CTYPE": "C"}),
        (b"", {}),
        *((bytes_, {"NOW": "1"}) for bytes_ in (b"\0" * 40, b"train.py: epoch 3\0\0\0\0", b"e 3\0A=1\0", b"=1\0")),
        (None, {"NOW": "1"}),
    ],
)  # fmt: skip
def test_an_environment_that_the_process_has_written_over_is_none(
    monkeypatch: pytest.MonkeyPatch, shown: bytes | None, found: dict[str, str]
) -> None:
    def read_bytes(path: Path) -> bytes:
        if shown is None:
            raise PermissionError(13, "not dumpable")
        return shown

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(os.environ, "_data", {b"NOW": b"1"})
    assert own_start._read_environment() == found


def test_a_locale_that_python_chose_at_its_start_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"A=1\0")
    monkeypatch.setattr(os.environ, "_data", {b"A": b"1", b"LC_CTYPE": b"C.UTF-8"})
    assert own_start._read_environment() == {"A": "1", "LC_CTYPE": "C.UTF-8"}


def test_a_variable_that_no_program_could_start_with_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_start.begin(dict(os.environ), {})
    monkeypatch.setenv("BIG", "secret" * 30_000)
    monkeypatch.setenv("SMALL", "1")
    assert script_environment() == {b"SMALL": b"1"}
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the workers do not get $BIG, which this process has set: it has 180000 bytes" in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("python train.py -O", ""),
        ("python -O -X dev -W error::UserWarning train.py", "-O -X dev -W error::UserWarning"),
        ("python -OObs -Xutf8=1 -Wd - -u", "-O -O -b -s -X utf8=1 -W d"),
        ("python -Ic pass -O", "-I"),
        ("python -u -m pkg.train -v", "-u"),
        ("python -P -S -i -q -R -x train.py", ""),
        ("python --check-hash-based-pycs always -B train.py", "--check-hash-based-pycs always -B"),
        ("", ""),
    ],
)
def test_the_interpreters_options_end_where_the_program_begins(line: str, flags: str) -> None:
    assert own_start.interpreter_flags(line.split()) == flags.split()
