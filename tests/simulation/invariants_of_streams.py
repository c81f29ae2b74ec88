"""Broken promises of streams."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.simulation.families import CREW
from tests.simulation.judgement import GIVEN_UP, Violation
from tests.simulation.operations import Operation


def judge_streams(
    book: Sequence[Operation],
    streams: Mapping[int, tuple[Sequence[int], int, int]],
    window: int,
    is_calm: bool,
    killed: set[str],
    node_died: bool,
) -> list[Violation]:
    """Items of each rank in order and whole, no more ahead than the credit; generators end with their readers."""
    found = []
    begun, closed, yielded = Counter[tuple[int, str]](), Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    came: dict[tuple[int, str], int] = defaultdict(int)
    reads: dict[int, Operation] = {}
    for each in book:
        if each.kind == "s_read":
            reads[each.facts[0]] = each
        if each.kind == "s_item":
            nonce, rank, number = each.facts
            if number != came[nonce, f"{CREW}:{rank}"]:
                text = f"stream {nonce} of rank {rank}: item {number}, not {came[nonce, f'{CREW}:{rank}']}"
                found.append(Violation("order", text))
            came[nonce, f"{CREW}:{rank}"] = number + 1
        if each.kind == "finishing" and not node_died:  # the end of the group would close them
            # The traceback of a reader that was cancelled keeps its stream.
            left = {nonce for nonce, read in reads.items() if read.ended and read.error is None}
            mine = [stream for stream in begun if stream[0] in left and stream[1] not in killed]
            open_ = [stream for stream in mine if closed[stream] < begun[stream]]
            found += [Violation("left", f"stream {stream} has not been closed") for stream in open_]
        if each.kind == "s_ended" and is_calm:
            open_ = [stream for stream in begun if stream[0] == each.facts[0] and closed[stream] < begun[stream]]
            found += [Violation("left", f"stream {stream} is open behind its aclose()") for stream in open_]
        if each.kind not in ("s_begun", "s_yield", "s_closed"):
            continue
        stream = each.facts[0], each.who
        if each.kind == "s_begun":
            begun[stream] += 1
        elif each.kind == "s_closed":
            closed[stream] += 1
        else:
            yielded[stream] += 1
            if yielded[stream] > came[stream] + window + 1:  # it is noted before it waits for credit
                text = f"stream {stream}: item {each.facts[1]}, when {came[stream]} had been read, of {window}"
                found.append(Violation("credit", text))
    for stream, times in begun.items():
        if times > 1:
            found.append(Violation("twice", f"stream {stream} was begun {times} times"))
    for nonce, read in reads.items():
        ranks, count, fails_at = streams[nonce]
        lives = not node_died and not any(f"{CREW}:{rank}" in killed for rank in ranks)
        is_whole = read.ended and read.error is None and read.facts[1] == "whole"
        fails = 0 <= fails_at < count
        if is_whole and not fails and read.value != count * len(ranks):
            found.append(Violation("lost", f"{read}, of {count} items of {len(ranks)} ranks"))
        if (
            is_whole
            and fails
            and (read.value != "LookupError" or not any(came[nonce, f"{CREW}:{rank}"] == fails_at for rank in ranks))
        ):
            found.append(Violation("lost", f"{read}, which was to fail at item {fails_at}"))
        if lives and is_calm and read.error is not None and read.error[0] not in GIVEN_UP:
            found.append(Violation("error", str(read)))
    return found
