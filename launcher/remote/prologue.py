"""Command line of the bootstrap on its host, after the shell commands of ``--prologue`` where there are any.

They run in a bash that then becomes the interpreter, so that what they export, load or activate is what the daemon and
its workers have.  They read nothing (stdin is the daemon's) and their stdout goes to stderr (stdout is the daemon's).
Without ``--python`` the interpreter is the ``python3`` that they put first on the PATH, else the launcher's own.
"""

from __future__ import annotations

from typing import Final

from rlinf_async._wire.remote_exit import RemoteExit

from .bootstrap import BOOTSTRAP

_FAILED: Final = "rlinf-prologue: exit status "

# The trap speaks also for a prologue that says `exit`, or `set -e` and fails.  The positional parameters are put away
# first: a sourced script would take them for its own.  No single quotes, so that any login shell passes it on.
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
    """The words to run on a host.

    Args:
        python: the interpreter that the user has named; a bare name is looked up once the prologue has run.
        default: where none is named.
        prologue: shell commands.
    """
    if prologue is None:
        return (python or default, "-c", BOOTSTRAP)
    return ("bash", "-c", _SCRIPT, "rlinf", prologue, python or "", default, BOOTSTRAP)


def explain_prologue(exited: RemoteExit, prologue: str | None) -> str | None:
    """The prologue, its exit status and last words, and the fix; None where it did not fail."""
    status = next((line.removeprefix(_FAILED) for line in exited.stderr if line.startswith(_FAILED)), None)
    if prologue is None or status is None:
        return None
    words = [line for line in RemoteExit(None, (), exited.stderr).last_lines() if _FAILED not in line]
    fix = "fix: try it in a bash there; it runs in `bash -c`, which has read no ~/.bashrc"
    return "\n".join([f"the prologue {prologue!r} ended with exit status {status}", *words, fix])
