"""Times at which a connection acknowledges what it has received."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlinf_async._core.resend import ACK_FRAMES
from rlinf_async._wire.acknowledgements import Acknowledgements


class Timers(list[Any]):
    def call_later(self, delay: float, call: Any, *args: Any) -> None:
        self.append((call, args))

    def fire(self) -> None:
        call, args = self.pop(0)
        call(*args)


def test_one_timer_waits_for_a_frame_that_carries_the_acknowledgement() -> None:
    incoming: Any = SimpleNamespace(
        descriptors=0, received=2 * ACK_FRAMES, look_at=ACK_FRAMES, acknowledged=0, is_due=True, owes=lambda: False
    )
    sent: list[int] = []
    writer: Any = SimpleNamespace(
        is_closed=False, on_loop=lambda call: call(), send_acknowledgement=lambda: sent.append(incoming.received)
    )
    timers: Any = Timers()
    acknowledgements = Acknowledgements(incoming, writer, timers)
    acknowledgements.consider()
    acknowledgements.consider()
    assert len(timers) == 1
    incoming.acknowledged = ACK_FRAMES  # an answer has carried one meanwhile, and further frames have come
    timers.fire()
    acknowledgements.consider()
    assert (len(timers), sent) == (1, [])
    timers.fire()
    assert (len(timers), sent) == (0, [2 * ACK_FRAMES])
    acknowledgements.consider()
    assert len(timers) == 1, "later frames set another"
    incoming.is_due = False
    timers.fire()
    acknowledgements.consider()
    assert (len(timers), len(sent)) == (1, 1)
    writer.is_closed = True
    timers.clear()
    Acknowledgements(incoming, writer, timers).consider()
    assert timers == []
