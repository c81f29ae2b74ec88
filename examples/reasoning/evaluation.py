"""Evaluation on held-out problems: accuracy of the likeliest responses, and pass@k of sampled ones."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from rows import Row
from sampler import Sampler


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Return the chance that one of k responses is right, without bias: Chen et al., arXiv 2107.03374, eq. 1."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples: k must be from 1 to their number")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


async def evaluate(
    sampler: Sampler, rows: Sequence[Row], samples: int, oldest: int, right_from: float
) -> dict[str, float]:
    """Return ``accuracy`` and ``pass@k`` over the rows, by so many samples of each; ``oldest`` as in ``sample``."""

    async def count_right(index: int, row: Row, count: int, temperature: float) -> int:
        group = await sampler.sample(row, index, count, oldest, temperature)
        return sum(response.reward >= right_from for response in group.responses)

    async with asyncio.TaskGroup() as tasks:
        likeliest = [tasks.create_task(count_right(index, row, 1, 0.0)) for index, row in enumerate(rows)]
        sampled = [tasks.create_task(count_right(index, row, samples, 1.0)) for index, row in enumerate(rows)]
    result = {"accuracy": sum(task.result() for task in likeliest) / len(rows)}
    for k in sorted({1, min(16, samples), samples}):
        result[f"pass@{k}"] = sum(pass_at_k(task.result(), samples, k) for task in sampled) / len(rows)
    return result
