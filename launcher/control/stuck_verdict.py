"""``rlinf-ctl stuck``: two reports of a run, half a second apart, and the verdict on them."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.state.verdict import judge, render

from .attachment import Attachment
from .run_view import RunView, look
from .stack_text import show_missing
from .text_output import Output

_ASK_AGAIN_S: Final = 0.5
_MIN_WORK: Final = 0.1
"""Part of the time between two reports for which a process that works has had a processor; an answer takes some too."""


async def show_verdict(attachment: Attachment, output: Output) -> bool:
    """Says why a run stands still, or that it does not; whether it goes on."""
    loop = asyncio.get_running_loop()
    before, began = await _look(attachment), loop.time()
    await asyncio.wait({attachment.lost}, timeout=_ASK_AGAIN_S)
    after = await _look(attachment)
    verdict = judge(after.report, before.report, working(before, after, loop.time() - began))
    if output.as_json:
        output.json({"verdict": verdict.to_data(), "report": to_data(after.report)})
    else:
        output.line(render(verdict))
        show_missing(after, output)
    return not verdict.is_stuck


def working(before: RunView, after: RunView, seconds: float) -> set[int]:
    """Endpoints of the processes that have worked between two reports: what they wait for may be under way."""
    return {
        process.endpoint
        for process in after.report.processes
        if after.detail(process)["cpu"] - before.detail(process)["cpu"] > seconds * _MIN_WORK
    }


async def _look(attachment: Attachment) -> RunView:
    return await look(attachment, parts=["activities", "queues"], details=True)
