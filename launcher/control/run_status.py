"""``rlinf-ctl ps`` lists this machine's runs; ``status`` shows one run's nodes, ranks, devices and channels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._inspection.state.run_report import ProcessReport, to_data
from rlinf_async.errors import RLinfAsyncError

from .attachment import Attachment, attached
from .run_places import LocalRun, end_text
from .run_view import RunView, look, span_of
from .text_output import TextOutput, age, size

_MAX_SHOWN_CALLS: Final = 3


async def show_runs(runs: Sequence[LocalRun], output: TextOutput, timeout: float) -> None:
    rows = []
    for run in runs:
        facts = await _facts_of_run(run, timeout)
        if output.as_json:
            output.json(facts)
        groups = " ".join(f"{name}:{ranks}" for name, ranks in facts["groups"].items())
        drivers = "\n".join(f"{driver['command']} (pid {driver['pid']})" for driver in facts["drivers"])
        state = facts["trouble"] or drivers or "no driver is attached"
        rows.append([run.run, run.since_text, str(len(facts["nodes"]) or "-"), groups or "-", facts["log_dir"], state])
    if output.as_json:
        return
    if rows:
        output.table(["RUN", "SINCE", "NODES", "GROUPS", "LOGS", "DRIVER"], rows)
    else:
        output.line("no runs of this user on this machine")


async def add_scripts(runs: Sequence[LocalRun], timeout: float) -> None:
    alive = [run for run in runs if run.is_alive]
    for run, facts in zip(alive, await asyncio.gather(*(_facts_of_run(run, timeout) for run in alive)), strict=True):
        run.script = " ".join(driver["command"] + _working_directory_of(driver["pid"]) for driver in facts["drivers"])
        run.script = run.script or facts["trouble"]


def _working_directory_of(pid: int) -> str:
    try:
        return f" in {Path(f'/proc/{pid}/cwd').readlink()}"
    except OSError:  # the daemon has ended or runs on another machine
        return ""


async def _facts_of_run(run: LocalRun, timeout: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"run": run.run, "since": run.since, "alive": run.is_alive, "trouble": ""}
    facts |= {"nodes": [], "groups": {}, "drivers": [], "log_dir": "-", "metrics": ""}
    if not run.is_alive:
        left = ", ".join(str(path.parent) for path in run.sockets.values())
        return facts | {"trouble": f"{end_text(run)}; left: {left}"}
    try:
        async with attached(run, timeout) as attachment:
            view = await look(attachment, details=True)
    except RLinfAsyncError as error:
        return facts | {"trouble": str(error).splitlines()[-1].strip()}
    return facts | {
        "nodes": [str(node["name"]) for node in attachment.nodes if not node["hidden"]],
        "groups": {name: span_of(workers) for name, workers in view.groups().items()},
        "drivers": [
            {"pid": driver.pid, "node": driver.node_name, "command": script_of(view.detail(driver)["command"])}
            for driver in view.drivers()
        ],
        "log_dir": str(attachment.welcome["log_dir"]),
        "metrics": attachment.welcome.get("metrics", ""),
        "trouble": "; ".join(f"{node}: {reason}" for node, reason in view.report.missing.items()),
    }


def script_of(command: str) -> str:
    first, _, rest = command.partition(" ")
    return rest if rest and Path(first).name.startswith("python") else command


async def show_status(attachment: Attachment, output: TextOutput) -> None:
    """Print a run's state as its daemons know it, without asking its processes."""
    view = await look(attachment, parts=["queues"], details=True, devices=True)
    if output.as_json:
        output.json(status_data(attachment, view))
        return
    run = attachment.run
    metrics = attachment.welcome.get("metrics")
    title = f"run {run.run} since {run.since_text}, logs in {attachment.welcome['log_dir']}"
    output.line(title + (f", metrics at http://{metrics}/metrics\n" if metrics else "\n"))
    output.table(["NODE", "NAME", "STATE", "CPUS", "RANKS", "DEVICES"], _node_rows(attachment, view))
    if away := [worker for worker in view.workers() if view.detail(worker)["away"]]:
        output.line(f"\naway, coming back: {' '.join(_folded(away))}")
    output.line()
    output.table(["PROCESS", "NODE", "PID", "MEMORY", "DEVICES", "SINCE", "DOES"], _process_rows(view))
    if templates := template_rows(attachment, view):
        output.line()
        output.table(["TEMPLATE", "NODE", "MEMORY", "OWN", "IMPORTED"], templates)
    if weights := weight_rows(view):
        output.line()
        output.table(["WEIGHTS", "PUBLISHED", "BY", "APPLIED", "BEHIND", "AT"], weights)
    if view.report.queues:
        output.line()
        output.table(["CHANNEL", "NODE", "ITEMS", "BYTES", "ROOM", "PUT BY", "GOT BY"], _channel_rows(attachment, view))
    if ledgers := [queue for queue in view.report.queues if queue.ledger]:
        output.line()
        rows = [[queue.name, *map(str, queue.ledger.values())] for queue in ledgers]
        output.table(["EXPERIENCE", *map(str.upper, ledgers[0].ledger)], rows)


def status_data(attachment: Attachment, view: RunView) -> dict[str, Any]:
    """Return the data of ``status --json``: the report, with the daemons' facts about nodes and processes."""
    processes = [to_data(each) | view.detail(each) for each in view.report.processes]
    nodes = [
        {
            "node": node["node"],
            "name": node["name"],
            "hidden": node["hidden"],
            "cpus": node["facts"]["cpus"],
            "gpus": node["facts"]["gpus"],
            "missing": view.missing.get(node["node"], ""),
            "log_dir": view.details.get(node["node"], {}).get("log_dir", ""),
            "devices": view.details.get(node["node"], {}).get("devices", {}),
            "templates": view.details.get(node["node"], {}).get("templates", []),
            "not_preloaded": view.details.get(node["node"], {}).get("not_preloaded", {}),
        }
        for node in attachment.nodes
    ]
    report: dict[str, Any] = to_data(view.report)
    more = {"since": attachment.run.since, "nodes": nodes, "processes": processes}
    return report | more | {"metrics": attachment.welcome.get("metrics", "")}


def _node_rows(attachment: Attachment, view: RunView) -> list[list[str]]:
    rows = []
    for node in attachment.nodes:
        number, facts = node["node"], node["facts"]
        ranks = sum(worker.node == number for worker in view.workers())
        use = view.details.get(number, {}).get("devices", {})
        devices = "\n".join(_device(gpu, use.get(gpu["id"], {})) for gpu in facts["gpus"])
        state = view.missing.get(number) or ("driver's machine only" if node["hidden"] else "ready")
        rows.append([str(number), str(node["name"]), state, str(facts["cpus"]), str(ranks), devices or "-"])
    return rows


def _device(gpu: dict[str, Any], use: dict[str, int]) -> str:
    """Format a device: ``0 H100: 3.2 of 85.9 GB, 97 %``, omitting unknown figures."""
    known = [f"{size(use['used'])} of {size(use['memory'])}"] if "memory" in use else []
    known += [f"{use['percent']} %"] if "percent" in use else []
    return f"{gpu['id']} {gpu['model']}" + (f": {', '.join(known)}" if known else "")


def _process_rows(view: RunView) -> list[list[str]]:
    rows = []
    processes = sorted(view.report.processes, key=lambda each: (each.role != "driver", each.group, each.rank))
    for process in processes:
        detail = view.detail(process)
        since, does = _doing(process, script_of(detail["command"]))
        if times := detail["restarts"]:
            does += f" (restarted {'once' if times == 1 else f'{times} times'})"
        memory = size(detail["memory"]) if detail["memory"] else "-"
        devices = ",".join(detail["devices"]) or "-"
        rows.append([process.name, process.node_name, str(process.pid or "-"), memory, devices, since, does])
    return rows


def template_rows(attachment: Attachment, view: RunView) -> list[list[str]]:
    """Return a row per process that forks workers, and a row with the reason per module that is not preloaded."""
    rows = []
    for node, details in sorted(view.details.items()):
        name = attachment.name_of(node)
        for each in details.get("templates", []):
            imported = ", ".join(["torch", *each["modules"]])
            rows.append([f"pid {each['pid']}", name, size(each["memory"]), size(each["private"]), imported])
        rows += [
            ["-", name, "-", "-", f"not {module}: {why}"] for module, why in details.get("not_preloaded", {}).items()
        ]
    return rows


def _doing(process: ProcessReport, command: str) -> tuple[str, str]:
    """Return the age of a process's oldest call, and a description of its activity."""
    calls = sorted(process.calls, key=lambda call: -call.age)
    words = [process.trouble] if process.trouble else []
    words += [f"{call.method}()" for call in calls[:_MAX_SHOWN_CALLS]]
    words += [f"{process.owed - _MAX_SHOWN_CALLS} more"] if process.owed > _MAX_SHOWN_CALLS else []
    if not calls and process.role == "driver":
        words.append(command)
    return age(calls[0].age) if calls else "-", ", ".join(words) or "idle"


def weight_rows(view: RunView) -> list[list[str]]:
    """Return a row per model and applied version: its ranks, and how many versions behind they are."""
    publishers: dict[str, tuple[int, str]] = {}
    holders: dict[tuple[str, int], list[ProcessReport]] = {}
    for process in view.report.processes:
        for model, versions in view.detail(process)["weights"].items():
            if "published" in versions:
                publisher = (versions["published"], process.name)
                publishers[model] = max(publishers.get(model, publisher), publisher)
            if "applied" in versions:
                holders.setdefault((model, versions["applied"]), []).append(process)
    rows = []
    for model, applied in sorted(holders):
        version, by = publishers.get(model, (None, "-"))
        behind = "-" if version is None else str(version - applied)
        rows.append([model, str(version or "-"), by, str(applied), behind, " ".join(_folded(holders[model, applied]))])
    held = {model for model, _ in holders}
    rows += [[model, str(number), by, "-", "-", "-"] for model, (number, by) in publishers.items() if model not in held]
    return rows


def _folded(processes: Sequence[ProcessReport]) -> list[str]:
    """Fold processes into short names: ``rollout:0-3`` for ranks, and drivers by name."""
    groups: dict[str, list[ProcessReport]] = {}
    for process in sorted(processes, key=lambda each: (each.group or each.name, each.rank)):
        groups.setdefault(process.group, []).append(process)
    return [f"{group}:{span_of(ranks)}" if group else ranks[0].name for group, ranks in groups.items()]


def _channel_rows(attachment: Attachment, view: RunView) -> list[list[str]]:
    rows = []
    for queue in sorted(view.report.queues, key=lambda each: (each.name, each.node)):
        room = "full" if queue.full else f"of {queue.maxsize}" if queue.maxsize else "any"
        node, items, nbytes = attachment.name_of(queue.node), str(queue.items), size(queue.nbytes)
        rows.append([queue.name, node, items, nbytes, room, named(view, queue.producers), named(view, queue.consumers)])
    return rows


def named(view: RunView, endpoints: Sequence[int]) -> str:
    """Return the names of processes. A process that no daemon names has ended, unless its daemon is silent."""
    names = view.report.ended | {process.endpoint: process.name for process in view.report.processes}
    silent = {each for each in endpoints if frames.node_of(each) in view.missing}
    return (
        " ".join(
            names.get(each, "(of a node that does not answer)" if each in silent else "(ended)") for each in endpoints
        )
        or "-"
    )
