"""Parser of placement rules such as ``0-7:0-15``: ranges of resources, and of the processes on each.

::

    rule      := segment ("," segment)*
    segment   := resources [":" processes]
    resources := "all" | number | number "-" number
    processes := number | number "-" number
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlinf_async.configuration import parse_range
from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class RuleSegment:
    """Consecutive processes on consecutive resources; the larger count is a multiple of the smaller count."""

    resources: range
    processes: range

    def get_resources_by_process(self) -> Iterator[range]:
        """Yield each process's resources.

        If there are more processes than resources, neighbours share a resource; otherwise, each process gets a block.
        """
        if len(self.processes) > len(self.resources):
            sharers = len(self.processes) // len(self.resources)
            for index in range(len(self.processes)):
                resource = self.resources[index // sharers]
                yield range(resource, resource + 1)
        else:
            block = len(self.resources) // len(self.processes)
            for first in self.resources[::block]:
                yield range(first, first + block)


def parse_rule(rule: str, num_resources: int) -> list[RuleSegment]:
    """Parse a rule; ``all`` means resources 0 to ``num_resources - 1``. Explicit ranges may exceed that bound.

    Processes are numbered from 0 without gaps, resources ascend, and no resource appears twice. A segment without
    processes has one process for each resource.

    Example:
        >>> [(segment.resources, segment.processes) for segment in parse_rule("0-1:0-3,4", 8)]
        [(range(0, 2), range(0, 4)), (range(4, 5), range(4, 5))]

    Raises:
        ConfigError: the rule is malformed; the message names the segment and the reason.
    """
    segments: list[RuleSegment] = []
    for text in rule.split(","):
        resource_text, colon, process_text = text.partition(":")
        resources = _parse_ranks(resource_text, rule, num_resources)
        _check_resources(resources, segments, rule)
        next_process = segments[-1].processes.stop if segments else 0
        if colon:
            if process_text.strip().lower() == "all":
                raise ConfigError(f"{text.strip()!r} in {rule!r}: the process ranks, after the ':', cannot be 'all'")
            processes = _parse_ranks(process_text, rule, None)
            _check_processes(processes, next_process, rule)
        else:
            processes = range(next_process, next_process + len(resources))
        if len(processes) % len(resources) and len(resources) % len(processes):
            in_rule = f" in {rule!r}" if text != rule else ""
            raise ConfigError(
                f"{text.strip()!r}{in_rule}: the number of process ranks {len(processes)} must be divisible "
                f"by the number of resource ranks {len(resources)}, or the other way round"
            )
        segments.append(RuleSegment(resources, processes))
    return segments


def _parse_ranks(text: str, rule: str, num_resources: int | None) -> range:
    text = text.strip()
    if num_resources is not None and text.lower() == "all":
        if not num_resources:
            raise ConfigError("'all' names nothing here: there is none")
        return range(num_resources)
    return parse_range(text, rule)


def _check_resources(resources: range, segments: list[RuleSegment], rule: str) -> None:
    if not segments or resources.start >= segments[-1].resources.stop:
        return
    for segment in segments:
        first = max(resources.start, segment.resources.start)
        if first < min(resources.stop, segment.resources.stop):
            raise ConfigError(f"Resource ranks must be unique: {first} is named twice in {rule!r}")
    raise ConfigError(
        f"Resource ranks must be in ascending order: {resources.start} comes after "
        f"{segments[-1].resources.stop - 1} in {rule!r}"
    )


def _check_processes(processes: range, expected: int, rule: str) -> None:
    if processes.start == expected:
        return
    if processes.start < expected:
        raise ConfigError(f"Process ranks must be unique: {processes.start} comes again in {rule!r}")
    raise ConfigError(
        f"Process ranks must be in ascending order and continuous, from 0 on: "
        f"expected {expected}, got {processes.start} in {rule!r}"
    )
