"""Entry point of ``rlinf-ctl``, the operator's tool for this user's runs: dispatch, exit codes and errors.

Exit codes: 0 for success; 1 if the run is stuck (``stuck``) or the command failed; 2 for wrong usage; 3 if there is no
such run, group or rank, or no daemon of the run answers; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from rlinf_async._core import surroundings
from rlinf_async.errors import ConfigError, RLinfAsyncError

from ..control.attachment import Attachment, attached
from ..control.debugger import debug
from ..control.log_files import show_kept_logs, show_logs
from ..control.recorded_places import choose_recorded, find_recorded
from ..control.run_bundle import show_bundle
from ..control.run_end import down, kill
from ..control.run_page import show_page
from ..control.run_places import LocalRun, NoSuchRun, choose, find_runs, folders
from ..control.run_status import add_scripts, show_runs, show_status
from ..control.stack_text import show_stacks
from ..control.stuck_verdict import show_verdict
from ..control.text_output import TextOutput
from .control_words import DEFAULT_TIMEOUT_S, parser

_NOT_DONE_CODE: Final = 1
_USAGE_ERROR_CODE: Final = 2
_NO_SUCH_RUN_CODE: Final = 3
_INTERRUPTED_CODE: Final = 130
_SCRIPTS_TIMEOUT_S: Final = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    surroundings.open_standard_descriptors()
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if (passed_on := _launcher_words(words)) is not None:
            from .main import main as launch  # imported only when needed, because it loads most of the launcher

            return launch(passed_on)
        return _run(parser().parse_args(words))
    except ConfigError as error:
        return _fail(error, _USAGE_ERROR_CODE)
    except NoSuchRun as error:
        asyncio.run(add_scripts(error.runs, _SCRIPTS_TIMEOUT_S))
        return _fail(error, _NO_SUCH_RUN_CODE)
    except RLinfAsyncError as error:
        return _fail(error, _NO_SUCH_RUN_CODE)
    except SystemExit as exit_:  # argparse has printed the error or the help
        return exit_.code if isinstance(exit_.code, int) else 2
    except BrokenPipeError:  # the reader closed the pipe, as in `rlinf-ctl status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # for example, a log cannot be read
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error, _NOT_DONE_CODE)
    except KeyboardInterrupt:
        return _INTERRUPTED_CODE


def _run(options: argparse.Namespace) -> int:
    timeout = getattr(options, "timeout", DEFAULT_TIMEOUT_S)
    output = TextOutput(sys.stdout, as_json="json" in options)
    places = folders(getattr(options, "run_dir", None), os.environ)
    wanted = _wanted(options)
    if options.command in ("check", "sweep"):
        fix = f"write it first: rlinf-ctl {options.command} ..."
        raise ConfigError(f"{options.command} is `rlinf-launch --{options.command}`, and takes its words\n  fix: {fix}")
    if options.command == "bundle":
        run = choose_recorded(wanted, places, _usage(options.command))
        asyncio.run(show_bundle(run, output, options.output, timeout))
        return 0
    if options.command == "page":
        asyncio.run(show_page(wanted, places, output, options.output, options.port, timeout))
        return 0
    if options.command == "ps":
        runs = find_runs(places)
        asyncio.run(show_runs([run for run in runs if run.run.startswith(wanted or "")], output, timeout))
        return 0
    if options.command == "logs":
        run = choose_recorded(wanted, places, _usage(options.command))
        if not run.is_alive:
            show_kept_logs(run, output, options.ranks, tail=options.tail)
            return 0
    else:
        runs = find_runs(places) if wanted is None else find_recorded(places)  # a named run may have ended
        run = choose(runs, wanted, places, _usage(options.command))
    return asyncio.run(_on_run(run, options, output, timeout))


def _usage(command: str) -> str:
    return f"rlinf-ctl {command} {'--run ' if command in ('logs', 'stack', 'kill', 'restart', 'debug') else ''}RUN"


def _wanted(options: argparse.Namespace) -> str | None:
    named: str | None = getattr(options, "run", None)
    behind: str | None = getattr(options, "run_id", None)
    if named is not None and behind is not None and named != behind:
        raise ConfigError(f"{options.command} {behind} and --run {named} name two runs\n  fix: keep one of the two")
    return behind or named


async def _on_run(run: LocalRun, options: argparse.Namespace, output: TextOutput, timeout: float) -> int:
    async with attached(run, timeout) as attachment:
        return 0 if await _command(attachment, options, output) else _NOT_DONE_CODE


async def _command(attachment: Attachment, options: argparse.Namespace, output: TextOutput) -> bool:
    """Run a command; return False if it failed, or if the run is stuck."""
    match options.command:
        case "status":
            await show_status(attachment, output)
        case "logs":
            await show_logs(attachment, output, options.ranks, tail=options.tail, follow=options.follow)
        case "stuck":
            return await show_verdict(attachment, output)
        case "stack":
            await show_stacks(attachment, output, options.ranks)
        case "kill":
            return await kill(attachment, output, options.ranks)
        case "restart":
            return await kill(attachment, output, options.ranks, restart=True)
        case "debug":
            return await debug(attachment, options.ranks)
        case "down":
            return await down(attachment, output)
    return True


def _launcher_words(words: Sequence[str]) -> list[str] | None:
    """Return the words to pass to ``rlinf-launch`` for ``check`` and ``sweep``; None for every other command."""
    front = [word for word in words[:1] if word == "--json"]
    match words[len(front) :]:
        case ["check", *rest]:
            return ["--check", *front, *rest]
        case ["sweep", *rest] if rest[:1] not in (["-h"], ["--help"]):
            runs = find_runs(folders(None, os.environ))
            run = rest.pop(0) if rest and not rest[0].startswith("-") else _the_ended_one(runs)
            meant = {each.run for each in runs if each.run.startswith(run)}
            return ["--sweep", *(meant if len(meant) == 1 else [run]), *front, *rest]
    return None


def _the_ended_one(runs: Sequence[LocalRun]) -> str:
    ended = [run for run in runs if not run.is_alive]
    if len(ended) == 1:
        return ended[0].run
    if not ended:
        raise NoSuchRun("there is nothing to sweep: no run that has ended has left anything here", runs)
    raise NoSuchRun(
        f"{len(ended)} runs have ended here and left something: name one of them: `rlinf-ctl sweep RUN`", runs
    )


def _fail(error: Exception | str, code: int) -> int:
    TextOutput(sys.stdout, as_json=False).note(f"rlinf-ctl: {error}")
    return code


if __name__ == "__main__":
    sys.exit(main())
