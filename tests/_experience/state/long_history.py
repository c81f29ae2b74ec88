"""One long random history of an experience: ``python -m tests._experience.state.long_history [SAMPLES [SEED]]``."""

from __future__ import annotations

import random
import sys
import time

from tests._experience.state.test_experience_histories import Histories


def play(samples: int, seed: int) -> str:
    """Put so many samples, in one experience after the other, and hold each to its model at every step."""
    choose, put, taken, steps, experiences = random.Random(seed), 0, 0, 0, 0
    while put < samples:
        history = Histories()
        options = {"group": choose.choice((1, 2, 3)), "max_staleness": choose.choice((0, 1, 2))}
        history.start(
            is_durable=choose.random() < 0.5, maxsize=choose.choice((12, 18)), max_bytes=choose.choice((0, 90)),
            order=choose.choice(("oldest", "newest")), group_timeout_s=choose.choice((0.0, 3.0)),
            short_groups=choose.choice(("drop", "take")), **options,
        )  # fmt: skip
        for _ in range(5000):
            one_step(history, choose)
            history.the_ledger_is_closed()
            history.what_is_here_was_accepted_and_not_taken()
            history.room_is_counted_and_kept()
            steps += 1
        history.teardown()
        put += len(history.accepted)
        taken += len(history.taken)
        experiences += 1
    return f"seed {seed}: {steps} steps in {experiences} experiences, {put} samples put, {taken} taken"


def one_step(history: Histories, choose: random.Random) -> None:
    which, number = choose.randrange(3), choose.randrange(20)
    what = choose.choices(("put", "take", "settle", "write", "time", "version", "cancel", "wish", "kill"),
                          (12, 5, 5, 8, 1, 1, 0.3, 1, 0.2))[0]  # fmt: skip
    key = choose.choice((None, None, b"k"))
    if what == "put":
        version = max(0, (history.version or 0) - choose.choice((0, 0, 1, 3)))
        history.put(which, key, choose.choice((b"a", b"b")), version, choose.randint(1, 5), choose.random() < 0.1)
    elif what == "take":
        history.take(which, key, choose.randint(1, 2), choose.random() < 0.1)
    elif what == "settle" and history.leased:
        history.settle(number, choose.randint(1, 2))
    elif what == "write" and history.desk.changes:
        history.write(choose.randint(1, 8), choose.random() < 0.02)
    elif what == "time":
        history.pass_time(choose.choice((0.1, 4.0)))
    elif what == "version":
        history.set_version(0, choose.choice((0, 1)), choose.random() < 0.05)
    elif what == "cancel":
        history.cancel(number)
    elif what == "wish":
        history.wish(which)
    elif what == "kill":
        history.kill(which)


def main(arguments: list[str]) -> None:
    samples = int(arguments[0]) if arguments else 1_000_000
    began = time.monotonic()
    told = play(samples, int(arguments[1]) if arguments[1:] else random.randrange(10**6))
    print(f"{told}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
