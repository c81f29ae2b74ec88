"""Environments that a program is started in: it works in each, or ends with a sentence that says why and what to do."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests._support import inherited, ordinary_run

_TIMEOUT_S: Final = 90
_TRACEBACK: Final = re.compile(r"^Traceback", re.MULTILINE)
_NOT_HERE: Final = 77
_ROOM: Final = "set XDG_RUNTIME_DIR or TMPDIR to a folder in which this user may write"
_KERNEL: Final = r"Linux \S+ refuses {} here: .*\n  fix: Linux 5.4 or newer; in a container, a runtime and a seccomp"
_ALLOCATORS: Final = "OMP_NUM_THREADS=1 MKL_NUM_THREADS=64 OPENBLAS_NUM_THREADS=64 MALLOC_ARENA_MAX=1"

_PROXIES: Final = " ".join(
    f"{name}_{ending}=http://127.0.0.1:9"
    for name, ending in [("http", "proxy"), ("https", "proxy"), ("all", "proxy"), ("grpc", "proxy"), ("ALL", "PROXY")]
)
_CLOSED: Final = ("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-")
_NO_PROCESS: Final = "Resource temporarily unavailable .*a limit of processes: `ulimit -u`"
_PYTHON: Final = "PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONOPTIMIZE=2"
_SIGNALS: Final = "PIPE,HUP,TERM,INT,QUIT,USR1,USR2,ALRM"
_REMOVED: Final = "import os, runpy, torch; os.rmdir('../gone'); runpy.run_path('$SCRIPT', None, '__main__')"
"""torch cannot be imported in a folder that is gone already."""


@dataclass(frozen=True)
class Environment:
    """An environment: shell code that starts the program, ``"$@"``, in it.

    Attributes:
        name: of the test.
        shell: finds ``$PY`` and ``$SCRIPT``, which ``"$@"`` consists of, an empty folder ``$WORK``, ``$INHERITED``.
        refused: pattern of the sentence that the program ends with; empty where it works.
        is_usual: part of ``make test-all``, and the first two of ``make test``; the others are ``make environments``.
    """

    name: str
    shell: str = 'exec "$@"'
    refused: str = ""
    is_usual: bool = False


def mounted(*lines: str) -> str:
    """Run the program in a mount namespace in which these lines have run."""
    return f'exec unshare -m bash -ec \'{"; ".join(lines)}; exec "$@"\' bash "$@"'


def as_stranger(shell: str = 'exec "$@"') -> str:
    """Run the program as a user whom passwd does not know; the capability only lets it read root's interpreter."""
    capability = "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
    user = "--reuid 54321 --regid 54321 --clear-groups"
    return (
        'chown 54321 "$TMPDIR" "$XDG_RUNTIME_DIR" "$WORK"; '
        f"exec setpriv {user} {capability} bash -ec '{shell}' bash \"$@\""
    )


def limited(group: str, limit: str, value: str) -> str:
    """Run the program in a control group of version 1 with a limit."""
    return (
        f"G=/sys/fs/cgroup/{group}/rlt-$$; mkdir $G && echo {value} >$G/{limit} || exit {_NOT_HERE}; "
        '(echo $BASHPID >$G/cgroup.procs; exec "$@") || CODE=$?; rmdir $G; exit $CODE'
    )


def denied(call: str) -> str:
    return f'exec "$PY" "$INHERITED" deny {call} -- "$@"'


def variables(names: str) -> str:
    return f'export {names}; exec "$@"'


ENVIRONMENTS = [
    # -- in make test: several of the below at once
    Environment(
        "as supervisors start programs",
        'umask 077; cd /; exec "$PY" "$INHERITED" ignore CHLD,PIPE,HUP -- "$@" <&- >&- 2>&-',
        is_usual=True,
    ),
    Environment(
        "names too long for a socket and no UTF-8",
        r"""F="$WORK/"$'\xff'$(printf "%0120d" 1); mkdir "$F"; cp "$SCRIPT" "$F/"$'\xfe.py'; cd "$F"; """
        r"""TMPDIR=$F XDG_RUNTIME_DIR=$F PYTHONPATH=$F ODD=$'\xfd' exec "$PY" "$F/"$'\xfe.py'""",
        is_usual=True,
    ),
    # -- alone
    Environment("as it is"),
    Environment("no variables at all", 'exec env -i "$@"'),
    Environment("no HOME and no PATH", 'unset HOME PATH; exec "$@"'),
    # -- who runs it, and where from
    Environment("PID 1 of a namespace", 'exec unshare --pid --fork --mount-proc "$@"'),
    Environment("pid namespace with another proc", 'exec unshare --pid --fork "$@"', r"it calls this process \d+"),
    Environment("no proc", mounted("umount -l /proc"), "/proc cannot be read .*\n  fix: `mount -t proc"),
    Environment("proc of each user alone", mounted("mount -o remount,hidepid=2 /proc")),
    Environment("user without passwd entry", as_stranger()),
    Environment("user namespace", 'exec unshare -Ur "$@"'),
    Environment("no capabilities", 'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'),
    # -- folders and file systems
    Environment("dev shm of 64 KB", mounted("mount -t tmpfs -o size=64k tmpfs /dev/shm")),
    Environment("dev shm forbidden", mounted("mount -t tmpfs -o ro,mode=000 tmpfs /dev/shm")),
    Environment("read-only root", mounted('mount --bind "$TMPDIR" "$TMPDIR"', "mount -o remount,ro,bind /")),
    Environment(
        "nothing is writable",
        mounted(
            'for D in "$TMPDIR" "$XDG_RUNTIME_DIR" "$WORK" /tmp /var/tmp',
            'do mount --bind "$D" "$D"; mount -o remount,ro,bind "$D"; done',
        ),
        f"no folder can be made for this run: .*Read-only file system: .*\n.*{_ROOM}",
    ),
    Environment("stale runtime directory", variables("XDG_RUNTIME_DIR=/run/user/9999999"), is_usual=True),
    Environment("runtime directory is a file", 'touch "$WORK/file"; XDG_RUNTIME_DIR="$WORK/file" exec "$@"'),
    Environment("runtime directory of root", as_stranger('XDG_RUNTIME_DIR=/root exec "$@"')),
    Environment("relative folders", 'mkdir a b; TMPDIR=a XDG_RUNTIME_DIR=b exec "$@"'),
    Environment("no TMPDIR", 'unset TMPDIR XDG_RUNTIME_DIR; exec "$@"'),
    Environment("missing TMPDIR", 'unset XDG_RUNTIME_DIR; TMPDIR=/nowhere/tmp exec "$@"'),
    Environment(
        "folders with long names",
        'L=$WORK/$(printf "%0120d" 1); mkdir "$L"; TMPDIR=$L XDG_RUNTIME_DIR=$L exec "$@"',
    ),
    Environment(
        "folder removed", f'mkdir gone; cd gone; exec "$PY" -c "{_REMOVED}"', r"has been removed \(.*gone \(deleted\)\)"
    ),
    # -- names, locales
    Environment("C locale", 'unset LANG; LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii PYTHONUTF8=0 exec "$@"'),
    Environment("unknown locale", variables("LC_ALL=xx_XX.ISO-8859-1") + " 2>&1"),
    Environment(
        "blanks and umlauts",
        'F="$WORK/ä ö"; mkdir "$F"; cp "$SCRIPT" "$F/ü 1.py"; cd "$F"; TMPDIR=$F XDG_RUNTIME_DIR= exec "$PY" "ü 1.py"',
    ),
    Environment(
        "umlauts in the C locale",
        'F="$WORK/ä ö"; mkdir "$F"; cp "$SCRIPT" "$F/ü 1.py"; cd "$F"; export TMPDIR=$F XDG_RUNTIME_DIR=; '
        'LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii PYTHONUTF8=0 exec "$PY" "ü 1.py"',
    ),
    Environment(
        "names that are no UTF-8",
        r"""F="$WORK/"$'\xff'; mkdir "$F"; cp "$SCRIPT" "$F/"$'\xfe.py'; cd "$F"; """
        r"""TMPDIR=$F XDG_RUNTIME_DIR=$F PYTHONPATH=$F ODD=$'\xfd' exec "$PY" "$F/"$'\xfe.py'""",
    ),
    # -- limits
    Environment("64 open files", 'ulimit -n 64; exec "$@"'),
    Environment(
        "24 open files", 'ulimit -n 24; exec "$@"', "too few file descriptors .* may have 24.*\n  fix: `ulimit"
    ),
    Environment("6 processes", as_stranger('ulimit -u 6; exec "$@"'), _NO_PROCESS),
    Environment("files of no size", 'ulimit -f 0; exec "$@"', r"of 0.4 MiB: File too large \(`ulimit -f`"),
    Environment("no locked memory, small stacks", 'ulimit -l 0; ulimit -s 256; exec "$@"'),
    Environment("3 GB of addresses", 'ulimit -v 3000000; exec "$@"'),
    Environment("cgroup of 6 processes", limited("pids", "pids.max", "6"), _NO_PROCESS),
    Environment("cgroup of half a processor", limited("cpu", "cpu.cfs_quota_us", "50000")),
    Environment("cgroup of 1 GB", limited("memory", "memory.limit_in_bytes", "1G")),
    Environment("one processor, nice", 'exec nice -n 19 taskset -c 0 "$@"'),
    # -- variables, and ways to start Python
    Environment("proxies", variables(_PROXIES)),
    Environment("variables of Python", variables(_PYTHON)),
    Environment("warnings are errors", variables("PYTHONWARNINGS=error")),
    Environment("development mode", variables("PYTHONDEVMODE=1 PYTHONASYNCIODEBUG=1")),
    Environment("path with what is not there", variables("PYTHONPATH=:/nowhere:. PYTHONPYCACHEPREFIX=/nowhere")),
    Environment("links to themselves", 'ln -s loop loop; PYTHONPATH="$PWD/loop" RLINF_NODE_SOCKET= exec "$@"'),
    Environment("threads and allocators", variables(_ALLOCATORS)),
    Environment(
        "socket of a run that has ended",
        variables("RLINF_NODE_SOCKET=/nowhere/node-0/node.sock"),
        "no daemon listens at RLINF_NODE_SOCKET=/nowhere/.*\n  fix: unset RLINF_NODE_SOCKET",
        is_usual=True,
    ),
    Environment("isolated", 'exec "$PY" -I -OO "$SCRIPT"'),
    Environment("script on stdin", 'exec "$PY" - <"$SCRIPT"'),
    Environment("script in the command line", 'exec "$PY" -c "$(cat "$SCRIPT")"'),
    Environment("script as a module", 'cd "$(dirname "$SCRIPT")"; exec "$PY" -m ordinary_run'),
    # -- signals, descriptors, modes
    Environment("SIGCHLD ignored", 'exec "$PY" "$INHERITED" ignore CHLD -- "$@"'),
    Environment("other signals ignored", f'exec "$PY" "$INHERITED" ignore {_SIGNALS} -- "$@"'),
    Environment("signals blocked", f'exec "$PY" "$INHERITED" block CHLD,{_SIGNALS} -- "$@"'),
    *(Environment(f"closed {closed}", f'exec "$@" {closed}') for closed in _CLOSED),
    Environment("stdout full", 'exec "$@" >/dev/full', "No space left on device"),
    Environment("stderr full", 'exec "$@" 2>/dev/full'),
    Environment("stderr not writable", 'exec "$@" 2</dev/null'),
    Environment("umask 077", 'umask 077; exec "$@"'),
    Environment("umask 0777", as_stranger('umask 0777; exec "$@"'), "with umask 0777 .*\n  fix: `umask 077`"),
    # -- kernels and networks
    Environment("no pidfd_open", denied("pidfd_open=ENOSYS"), _KERNEL.format("pidfd_open"), is_usual=True),
    Environment("pidfd_open forbidden", denied("pidfd_open=EPERM"), _KERNEL.format("pidfd_open")),
    Environment("no pidfd_send_signal", denied("pidfd_send_signal=ENOSYS"), _KERNEL.format("pidfd_send_signal")),
    Environment("no memfd_create", denied("memfd_create=ENOSYS"), _KERNEL.format("memfd_create")),
    Environment(
        "host name unknown, no loopback",
        """exec unshare -un bash -ec 'hostname nowhere.invalid; exec "$@"' bash "$@" """,
    ),
    Environment("loopback only", """exec unshare -n bash -ec 'ip link set lo up; exec "$@"' bash "$@" """),
]


def run(environment: Environment, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in an environment, with folders of its own."""
    script = shutil.copy(ordinary_run.__file__, folder / "ordinary_run.py")
    folders = {"WORK": folder / "work", "TMPDIR": folder / "tmp", "XDG_RUNTIME_DIR": folder / "run"}
    for made in folders.values():
        made.mkdir(mode=0o700)
    known = {"PY": sys.executable, "SCRIPT": str(script), "INHERITED": inherited.__file__}
    command = ["bash", "-ec", environment.shell, "bash", sys.executable, str(script)]
    process = subprocess.Popen(
        command, env={**os.environ, **known, **{name: str(path) for name, path in folders.items()}},
        cwd=folders["WORK"], start_new_session=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@functools.cache
def may_isolate() -> bool:
    """True if this process may make namespaces: as root, and not in every container."""
    command = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "true"]
    return not os.geteuid() and not subprocess.run(command, capture_output=True, timeout=20, check=False).returncode


@pytest.mark.parametrize(
    "environment",
    [
        *(pytest.param(each, id=each.name) for each in ENVIRONMENTS[:2]),
        *(
            pytest.param(each, id=each.name, marks=pytest.mark.slow if each.is_usual else pytest.mark.environments)
            for each in ENVIRONMENTS[2:]
        ),
    ],
)
def test_a_program_works_or_says_in_a_sentence_why_not(environment: Environment, tmp_path: Path) -> None:
    if not environment.is_usual and not may_isolate():
        pytest.skip("only root can make these environments, and not in every container")
    done = run(environment, tmp_path)
    if done.returncode == _NOT_HERE:
        pytest.skip(f"this machine has no such control group: {done.stderr}")
    assert not _TRACEBACK.search(done.stderr), done.stderr
    assert done.returncode == (1 if environment.refused else 0), done.stderr
    assert re.search(environment.refused, done.stderr), done.stderr
    left = [*(tmp_path / "run").iterdir(), *(tmp_path / "tmp").iterdir()]
    assert [path for path in left if not path.name.startswith("rlinf-logs-")] == []


def test_the_launcher_tells_the_exit_code_of_its_script_where_a_supervisor_starts_it(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    ignoring = [sys.executable, inherited.__file__, "ignore", "CHLD", "--"]
    launch = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-m", "rlinf_launcher", str(script)]
    assert subprocess.run([*ignoring, *launch], timeout=_TIMEOUT_S, check=False).returncode == 7
