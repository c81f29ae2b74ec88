"""Entry point of ``rlinf-launch``: run, check, preview or sweep, with signals, ``--timeout`` and exit codes.

The launcher's own messages go to stderr, because stdout belongs to the script.  Only the output of flags that replace a
run (``--help``, ``--version``, ``--print-completion``, ``--dry-run``, ``--show-placement``, ``--check``, ``--sweep``)
is printed on stdout.

Exit codes: the script's own; 1 also if a rank failed, or a node with ranks was lost, without the script noticing; 2 for
wrong usage; 124 after ``--timeout``; 130 after Ctrl-C, SIGTERM or SIGHUP; 255 if nodes could not be started, or a sweep
was refused or incomplete.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import shlex
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rlinf_async import __version__, settings
from rlinf_async._core import surroundings
from rlinf_async._wire.terminal import Terminal, TerminalStream
from rlinf_async.errors import ConfigError, LaunchError, RLinfAsyncError

from ..driver import Driver
from ..job import INTERRUPTED, Job, missing_script_text, script_command, script_is_missing
from ..options import Options
from ..remote.exported_env import shown
from ..remote.host import describe
from ..remote.plan import PlannedNode, found_here, plan
from ..remote.sweep import sweep
from ..report import JsonReport, Report, counted, grid, make_report
from .allocation import find_hosts, with_launcher
from .check import check
from .flags import help_text
from .parsing import exported, flags_behind, parse
from .show_placement import DEFAULT_DRAWING, picture, save

_USAGE_ERROR_CODE: Final = 2
_TIMEOUT_CODE: Final = 124
_LAUNCH_FAILED_CODE: Final = 255
_UNNOTICED_FAILURE_CODE: Final = 1
_MAX_UNNOTICED_LINES: Final = 20
_OPEN_FILES: Final = 128  # more than the launcher needs besides its nodes


def main(argv: Sequence[str] | None = None) -> int:
    surroundings.open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a variable may be no text in stdout's encoding
    # Some supervisors start their children with SIGCHLD ignored, in which case the script's exit code would be lost.
    # tests/test_environments.py
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in words  # the format of errors until the arguments are parsed
    try:
        options = parse(words, os.environ)
        as_json = options.json
        if options.help:
            return _print(help_text())
        if options.version:
            version = {"event": "version", "version": __version__}
            return _print(json.dumps(version) if options.json else f"rlinf-launch {__version__}")
        if options.print_completion is not None:
            from .completion import launch_script  # imported only here, because a run does not need argparse

            return _print(launch_script(options.print_completion))
        settings.check()
        is_preview = options.dry_run or options.show_placement is not None
        is_run = not (options.sweep or options.check or is_preview)
        if is_run and script_is_missing(options):
            return asyncio.run(_run_alone(options))
        variables = exported(os.environ, options)
        hosts, source = find_hosts(options.hosts, os.environ, sys.stdin, options.allow_duplicate_hosts)
        if options.local_nodes is None:
            hosts = with_launcher(hosts, options.launcher, os.environ)
        else:
            source = f"--local-nodes {options.local_nodes}"
        nodes = plan(hosts, options)
        if is_preview:
            return _preview(nodes, source, options, variables)
    except RLinfAsyncError as error:
        _refuse(str(error), as_json=as_json)
        return _USAGE_ERROR_CODE if isinstance(error, ConfigError) else _LAUNCH_FAILED_CODE
    except KeyboardInterrupt:  # while the hosts are read from stdin, for example
        return INTERRUPTED
    # The terminal writes in a thread, so that an unread stderr cannot block the handling of signals and lost nodes.
    terminal = Terminal()
    frame = ('{"event": "note", "text": "', '"}') if options.json else ("rlinf-launch: ", "")
    stream: Any = TerminalStream(terminal, sys.stderr, *frame)
    report = make_report(as_json=options.json, verbosity=options.verbosity, stream=stream)
    report.detail(f"hosts from {source}")
    if is_run and (stray := flags_behind(options.args)):
        these, are = (stray[0], "stands") if len(stray) == 1 else (", ".join(stray), "stand")
        report.note(
            f"note: {these} {are} after the script, and so for it; rlinf-launch's flags stand before the script"
        )
    try:
        surroundings.check()
        _allow_open_files(len(nodes))
        if options.sweep:
            return asyncio.run(_interruptible(_sweep(nodes, options)))
        if options.check:
            return asyncio.run(_interruptible(_check(nodes, options, variables, report)))
        return asyncio.run(_launch(nodes, options, variables, report))
    except ConfigError as error:
        report.error(str(error))
        return _USAGE_ERROR_CODE
    except RLinfAsyncError as error:
        report.error(str(error))
        return _LAUNCH_FAILED_CODE
    except KeyboardInterrupt:  # Ctrl-C arrived before the event loop handled signals
        return INTERRUPTED
    finally:
        terminal.close()


def _allow_open_files(nodes: int) -> None:
    usual, utmost = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OPEN_FILES + 4 * nodes  # a node takes a socket, a pipe and a pidfd
    if 0 <= usual < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if utmost < 0 else min(needed, utmost), utmost))


def _preview(nodes: Sequence[PlannedNode], source: str, options: Options, variables: Mapping[str, str]) -> int:
    if options.dry_run:
        facts = _preview_facts(nodes, source, options, variables)
        _print(json.dumps(facts) if options.json else _preview_text(nodes, source, options, variables))
    if options.show_placement is not None:
        drawn = picture(nodes, options, os.environ)
        path = options.placement_svg or Path(DEFAULT_DRAWING)
        save(drawn, path)
        if options.json:
            _print(json.dumps({**drawn.facts(), "drawing": str(path)}))
        else:
            _print("\n" * options.dry_run + f"{drawn.text()}\n\ndrawn in {path}")
    return _LAUNCH_FAILED_CODE if options.dry_run and script_is_missing(options) else 0


def _preview_text(nodes: Sequence[PlannedNode], source: str, options: Options, exported: Mapping[str, str]) -> str:
    """Describe the parsed hosts, the ranks, the variables (secrets masked), and the exact command lines."""
    visible = [node for node in nodes if not node.hidden]
    out = [f"hosts from {source}", ""]
    out.append(
        grid(["RANK", "HOST"], [[str(node.rank), describe(node.host, is_here=node.is_here)] for node in visible])
    )
    if len(visible) < len(nodes):
        out.append("\nthis machine is not among them: a daemon without slots runs here, for the script")
    out += ["", f"variables for every node ({len(exported)})"]
    out += [f"  {name}={shown(name, value)}" for name, value in exported.items()]
    if options.sync is not None:
        out += ["", f"shipped to every other machine: {options.sync}"]
    out += ["", "commands"]
    out += [f"  {shlex.join(node.connector.argv)}" for node in nodes if not node.is_here]
    if options.script is not None:
        out.append(f"  {shlex.join(script_command(options))}")
    if script_is_missing(options):
        out += ["", *missing_script_text(options).split("\n")]
    return "\n".join(out)


def _preview_facts(
    nodes: Sequence[PlannedNode], source: str, options: Options, exported: Mapping[str, str]
) -> dict[str, object]:
    return {
        "event": "dry_run",
        "source": source,
        "nodes": [
            {
                "rank": node.rank,
                "name": node.name,
                "host": describe(node.host, is_here=node.is_here),
                "here": node.is_here,
                "hidden": node.hidden,
                "argv": None if node.is_here else list(node.connector.argv),
            }
            for node in nodes
        ],
        "env": {name: shown(name, value) for name, value in exported.items()},
        "sync": str(options.sync) if options.sync else None,
        "script": script_command(options) if options.script else None,
        "failure": missing_script_text(options) if script_is_missing(options) else None,
    }


async def _launch(nodes: Sequence[PlannedNode], options: Options, variables: Mapping[str, str], report: Report) -> int:
    if options.python and not found_here(options.python) and any(node.hidden for node in nodes):
        report.warn(f"--python {options.python} is not on this machine: the script itself runs with {sys.executable}")
    job = Job(nodes, options, variables, os.environ, report)
    code = INTERRUPTED
    with _signals(job, report), _time_limit(job, options.timeout, report) as limit:
        try:
            async with job:
                code = await job.run_script()
                if code and not job.was_interrupted:
                    await job.keep_bundle()
        except asyncio.CancelledError:
            if not job.was_interrupted:
                raise
        except LaunchError:
            if not job.was_interrupted:
                raise
    if job.was_interrupted:
        code = _TIMEOUT_CODE if limit.has_passed else INTERRUPTED
        report.exit(str(options.script), code, None)
        return code
    script_code = code
    if script_code == 0 and (failures := job.unobserved):
        shown = failures[:_MAX_UNNOTICED_LINES]
        shown += [f"and {len(failures) - _MAX_UNNOTICED_LINES} more"] if len(failures) > _MAX_UNNOTICED_LINES else []
        await job.keep_bundle()
        report.error("the script ended well, but did not notice these failures:\n  " + "\n  ".join(shown))
        code = _UNNOTICED_FAILURE_CODE
    report.exit(str(options.script), code, script_code)
    return code


async def _run_alone(options: Options) -> int:
    """Run a script that does not exist, without nodes, so that Python reports the error with its own exit code."""
    driver = Driver(script_command(options), os.environ)
    try:
        return await driver.wait()
    finally:
        await driver.close()


async def _check(nodes: Sequence[PlannedNode], options: Options, variables: Mapping[str, str], report: Report) -> int:
    found = await check(nodes, options, variables.get("PYTHONPATH", ""), report)
    if options.json:
        for facts in found.facts():
            _print(json.dumps(facts))
    else:
        _print(found.text())
    return _LAUNCH_FAILED_CODE if found.failures else 0


async def _sweep(nodes: Sequence[PlannedNode], options: Options) -> int:
    assert options.sweep is not None
    results, failures = await sweep(nodes, options.sweep, even_alive=options.force)
    for node in nodes:
        answer, failure = results.get(node.rank), failures.get(node.rank)
        if options.json:
            _print(json.dumps({"event": "sweep", "name": node.name, "failure": failure, "answer": answer}))
        elif answer is None:
            _print(f"{node.name}: {failure}")
        else:
            ended, removed = counted(len(answer["ended"]), "process"), answer["removed"]
            _print(f"{node.name}: {ended} ended{''.join(f', {path} removed' for path in removed)}")
            for line in answer["ended"]:
                _print(f"  {line}")
    return _LAUNCH_FAILED_CODE if failures else 0


@contextmanager
def _signals(job: Job, report: Report) -> Iterator[None]:
    """Context manager: SIGINT, SIGTERM and SIGHUP shut the job down cleanly; a second signal kills it."""
    loop, numbers = asyncio.get_running_loop(), _ending_signals()

    def on_signal(number: signal.Signals) -> None:
        if job.was_interrupted:
            report.note(f"{number.name} again: ending at once")
            job.kill()
        else:
            report.note(f"{number.name}: ending in order, within 5 s; again to end at once")
            job.interrupt(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _ending_signals() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    # nohup sets SIGHUP to SIG_IGN, in which case the run must survive a hangup.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


class _TimeLimit:
    """Record of whether ``--timeout`` has ended the run."""

    has_passed = False


@contextmanager
def _time_limit(job: Job, seconds: float | None, report: Report) -> Iterator[_TimeLimit]:
    """Context manager: shuts the job down cleanly after ``seconds``, as a signal would."""
    limit = _TimeLimit()

    def on_time() -> None:
        if not job.was_interrupted:
            limit.has_passed = True
            report.error(f"--timeout: {seconds:g} s have passed: ending in order")
            job.expire()

    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, on_time)
    try:
        yield limit
    finally:
        if timer is not None:
            timer.cancel()


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """Return ``work``'s result, or 130 if a signal interrupts it."""
    loop = asyncio.get_running_loop()
    task: asyncio.Task[int] = asyncio.ensure_future(work)
    for number in _ending_signals():
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED


def _print(text: str) -> int:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        if not isinstance(error, BrokenPipeError):  # the reader closed the pipe, as in `rlinf-launch --help | head`
            raise LaunchError(f"stdout cannot be written: {error.strerror}\n  fix: redirect it elsewhere") from error
    return 0


def _refuse(text: str, *, as_json: bool) -> None:
    if as_json:
        JsonReport().error(text)
    else:
        sys.stderr.write(f"rlinf-launch: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
