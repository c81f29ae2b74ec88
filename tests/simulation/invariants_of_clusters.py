"""Broken promises of relayed broadcasts, weights, and groups with few restarts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.simulation.acts_of_clusters import Invitation
from tests.simulation.fleet import GUEST, RUN_STEP
from tests.simulation.judgement import GIVEN_UP, Violation
from tests.simulation.operations import Operation
from tests.simulation.program import Program


def judge_casts(book: Sequence[Operation], program: Program, killed: set[str], node_died: bool) -> Iterator[Violation]:
    """Every receiver gets the source's value, whole; none is left out while nobody has died or given up."""
    casts: dict[int, list[Operation]] = defaultdict(list)
    for each in book:
        if each.kind == "r_cast":
            casts[each.facts[0]].append(each)
    # A ``cancel`` of the guests may hit one of these ranks, as one that gives up.
    is_given_up = any(
        step.kind == "cancel" or (step.kind == "r_cast" and step.facts[3] is not None) for step in program.steps
    )
    is_clean = not killed and not node_died and not is_given_up
    for nonce, takes in casts.items():
        for each in takes:
            if each.value is not None and not each.value[1]:
                yield Violation("torn", f"{each} brought torn values")
            # After a death or a cancel, the value may be that of another broadcast.
            if is_clean and each.value is not None and each.value[0] != nonce:
                yield Violation("foreign", f"{each} brought another value")
        lacking = [str(each) for each in takes if each.ended and each.error is not None]
        if is_clean and lacking:
            yield Violation("lost", f"broadcast {nonce}: {lacking}")


def judge_tensors(
    book: Sequence[Operation], program: Program, killed: set[str], node_died: bool
) -> Iterator[Violation]:
    """Messages to oneself and tensors come whole; a tensor without a place for it fails at both ends."""
    if killed or node_died or any(step.kind == "cancel" for step in program.steps):
        return
    for each in book:
        if each.kind in ("r_self", "r_tensor") and each.ended and each.error is None:
            fits = each.kind == "r_self" or each.facts[1] == "fits"
            if fits and (each.value == "ValueError" or not all(each.value)):
                yield Violation("torn", str(each))
            if not fits and each.value != "ValueError":
                yield Violation("foreign", f"{each}, and there was no place for it")
        elif each.kind in ("r_self", "r_tensor") and each.error is not None:
            yield Violation("hang", str(each))


def judge_weights(book: Sequence[Operation], program: Program, killed: set[str]) -> Iterator[Violation]:
    """Weights are whole, were published under their number before, never go back, and are there once delivered."""
    published: set[int] = set()
    latest: Counter[int] = Counter()
    owed: dict[int, int] = {}
    who: dict[int, str] = {}
    followers: set[str] = set()
    # Each rank follows within seconds, so a patient trainer of a calm program meets them all.
    trains_with = [step.facts[3] for step in program.steps if step.kind == "w_train"]
    is_patient = program.is_calm and all("('ack_timeout', 20.0)" in str(options) for options in trains_with)

    def is_fatal(operation: Operation) -> bool:
        return program.is_calm and operation.error is not None and operation.error[0] not in GIVEN_UP

    for each in book:
        if each.kind == "w_publish":
            run, version = each.facts
            published.add(run + version)
        elif each.kind == "w_follow":
            who[each.facts[0]] = each.who
            trains = any(other.kind == "w_train" and not other.error for other in book)
            is_first = each.who not in followers
            followers.add(each.who)
            # The trainer stays until every rank has followed once.
            leaves_early = is_first and each.value == "ClosedError" and not killed
            if trains and (leaves_early or is_fatal(each) or (program.is_calm and is_first and each.error is not None)):
                yield Violation("lost", str(each))
        elif each.kind == "w_delivered":
            run, version, workers = each.facts
            for nonce, worker in who.items():
                if worker in workers and latest[nonce] // RUN_STEP == run // RUN_STEP:
                    owed[nonce] = run + version
        elif each.kind == "w_train" and (is_fatal(each) or (is_patient and each.error is not None)):
            yield Violation("lost", str(each))
        elif each.kind == "w_read":
            nonce, version, numbers, is_whole = each.facts
            if len(numbers) != 1 or not is_whole:
                yield Violation("torn", f"{each.who} read {numbers} as version {version}, the rest whole: {is_whole}")
                continue
            number = int(numbers[0])
            if number not in published or number % RUN_STEP != version:
                yield Violation("foreign", f"{each.who} read {number} as version {version}, of {sorted(published)}")
            if number < latest[nonce]:
                yield Violation("back", f"{each.who} read {number} behind {latest[nonce]}")
            if number < owed.get(nonce, 0):
                yield Violation("lost", f"{each.who} read {number}, and {owed[nonce]} had been delivered")
            latest[nonce] = number


def judge_guests(book: Sequence[Operation], guests: Invitation | None, node_died: bool) -> Iterator[Violation]:
    """Each rank answers its own call; a death is told once; nobody is started again more often than is allowed."""
    if guests is None:
        return
    is_quiet = not guests.is_closed and not guests.was_killed and not guests.by_hand and not guests.frail
    for each in book:
        if each.kind == "guest_talk" and is_quiet and each.ended and isinstance(each.value, str) and not node_died:
            yield Violation("death", f"{each}, and no guest has died")
    runs = Counter((each.who, each.facts[0]) for each in book if each.kind == "guest_run")
    yield from (Violation("twice", f"{who} ran call {nonce} {n} times") for (who, nonce), n in runs.items() if n > 1)
    told = Counter(tuple(each.facts) for each in book if each.kind == "guest_death")
    yield from (Violation("twice", f"the death {death} was told {n} times") for death, n in told.items() if n > 1)
    for each in book:
        if each.kind == "guest_call" and isinstance(each.value, list):
            how, nonces, ranks = each.facts
            wanted = nonces if how == "each" else [nonces[0]] * len(ranks)
            answers = [answer[0] for answer in each.value]
            wanted = nonces if how == "crowd" else nonces[:1] if how == "any" else wanted
            if answers != wanted:
                yield Violation("foreign", f"{each}, not {wanted}")
            if how not in ("any", "crowd") and [answer[1] for answer in each.value] != ranks:
                yield Violation("foreign", f"{each}: answers of other ranks")
    if node_died:
        return
    given_up = {f"{GUEST}:{each.facts[0]}" for each in book if each.kind == "guest_death" and not each.facts[2]}
    for each in book:
        is_late = each.kind == "guest_talk" and each.error is not None and each.error[0] == "TimeoutError"
        if is_late and each.facts[1] in given_up:
            yield Violation("death", f"{each}, which is not started again")
    told_of = {each.facts[0] for each in book if each.kind == "guest_death"}
    if not guests.is_closed and (silent := set(guests.deaths) - told_of):
        yield Violation("lost", f"the driver was not told of the deaths of guests {sorted(silent)}")
    born = Counter(each.who for each in book if each.kind == "guest_born" and each.who.startswith(f"{GUEST}:"))
    most = 1 + guests.max_restarts + guests.by_hand if guests.restart else 1
    if guests.window == 600.0:
        yield from (Violation("budget", f"{who} was born {n} times of {most}") for who, n in born.items() if n > most)


def judge_ports(book: Sequence[Operation], killed: set[str]) -> Iterator[Violation]:
    """Two living processes are never promised one port."""
    ports = Counter(each.value for each in book if each.kind == "port" and each.value is not None)
    if not killed:
        yield from (Violation("two", f"port {port} was promised {n} times") for port, n in ports.items() if n > 1)
