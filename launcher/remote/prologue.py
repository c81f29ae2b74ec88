"""The command line that runs the bootstrap on its host, after the shell commands of ``--prologue``, if any.

The commands run in a bash that then execs the interpreter, so the daemon and its workers inherit everything that the
commands export, load or activate.  Their stdin is empty and their stdout goes to stderr, because both belong to the
daemon.  Without ``--python``, the interpreter is the ``python3`` that the commands put first on the PATH, or else the
launcher's own.
"""

from __future__ import annotations

from typing import Final

from rlinf_async._wire.remote_exit import RemoteExit

from .bootstrap import BOOTSTRAP

_FAILED: Final = "rlinf-prologue: exit status "

# The trap also reports a prologue that calls `exit`, or fails under `set -e`. The positional parameters are cleared
# first, because a sourced script would take them for its own. The script has no single quotes, so it passes through any
# login shell.
_SCRIPT: Final = (
    "rlinf_commands=$1 rlinf_python=$2 rlinf_default=$3 rlinf_bootstrap=$4; set --; "
    f'trap "echo {_FAILED}\\$? >&2" EXIT; '
    'rlinf_before=$(command -v python3); eval "$rlinf_commands" </dev/null >&2; rlinf_status=$?; '
    "if [ $rlinf_status != 0 ]; then exit $rlinf_status; fi; trap - EXIT; "
    "rlinf_after=$(command -v python3 || :); "
    'if [ "$rlinf_after" = "$rlinf_before" ]; then rlinf_after=; fi; '
    "rlinf_python=${rlinf_python:-${rlinf_after:-$rlinf_default}}; "
    'exec "$rlinf_python" -c "$rlinf_bootstrap"'
)


def bootstrap_argv(python: str | None, default: str, prologue: str | None) -> tuple[str, ...]:
    """Return the command to run on a host; a bare ``python`` is looked up after the prologue."""
    if prologue is None:
        return (python or default, "-c", BOOTSTRAP)
    return ("bash", "-c", _SCRIPT, "rlinf", prologue, python or "", default, BOOTSTRAP)


def explain_prologue(exited: RemoteExit, prologue: str | None) -> str | None:
    """Describe a failed prologue by its exit status, last lines and a fix; return None if it did not fail."""
    status = next((line.removeprefix(_FAILED) for line in exited.stderr if line.startswith(_FAILED)), None)
    if prologue is None or status is None:
        return None
    words = [line for line in RemoteExit(None, (), exited.stderr).last_lines() if _FAILED not in line]
    fix = "fix: try it in a bash there; it runs in `bash -c`, which has read no ~/.bashrc"
    return "\n".join([f"the prologue {prologue!r} ended with exit status {status}", *words, fix])
