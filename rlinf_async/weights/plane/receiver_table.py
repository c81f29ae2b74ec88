"""The receivers of one publisher: announcements and deliveries to each, and their answers.

add ──► opened ──► HELLO ──► ACK of 0       HELLO also announces the latest version to a late receiver
publish ──► PUBLISH to receivers on this machine; to others once it has arrived on their machine ──► ACK
connect ──► PUBLISH of the latest version, or of 0 without memory, to receivers that refused it ──► ACK
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.failures import unpack_error
from rlinf_async._messaging.relay import Relay
from rlinf_async._messaging.state.relay_plan import FROM_HOSTS
from rlinf_async.errors import ClosedError, TransferFailed
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.plane.host_memory import Outgoing
from rlinf_async.weights.plane.receiver_state import Agreement, ReceiverState
from rlinf_async.weights.state import messages
from rlinf_async.weights.state.sync_report import Ack
from rlinf_async.weights.state.versions import VersionLedger

_MOST_OWED: Final = 64
"""Limit on one receiver's unanswered versions, beyond which announcements would only fill memory."""


class ReceiverTable:
    """The table of one publisher's receivers. Links may deliver messages in any thread.

    Args:
        complete: called with each version once all receivers have answered it.
        changed: called after every change.
        fill: called when a receiver needs the latest version in its slot; must result in a call to ``filled``.
        chain_from: size in bytes above which machines forward a version to each other.
        verify: called with a receiver that has applied a version, and its digests; must result in a call to
            ``verified``.
        ahead: True if versions are published while others are pending.

    Attributes:
        seconds: time limit of the last published version.
    """

    def __init__(
        self,
        model_id: str,
        complete: Callable[[int], None],
        changed: Callable[[], None],
        fill: Callable[[], None],
        chain_from: int,
        verify: Callable[[ReceiverState, Ack, Any], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self.ledger = VersionLedger()
        self._ahead = ahead
        self.seconds = 60.0
        self._model_id = model_id
        self._complete = complete
        self._changed = changed
        self._fill = fill
        self._verify = verify
        self._lacking: dict[ReceiverState, Any] = {}
        """Maps each receiver that waits for ``filled`` or the end of packing to the memory that it could not open."""
        self._lock = threading.RLock()
        """Lock that guards the table; also held during sends, so that messages leave in the order of the decisions."""
        self._receivers: dict[Hashable, ReceiverState] = {}
        self._completed: list[int] = []
        """Completed versions not yet passed to ``complete``."""
        self._present: dict[ReceiverState, bool] = {}
        """Maps each receiver that was added before the current version's recipients were chosen to True if it has
        refused the weights since then. ``publish`` then records the failure, because the receiver may never answer."""
        self._store: Store | None = None
        self._relay = Relay(self, self._lock, chain_from)
        self._plan = self._relay.plan
        self._is_closed = False

    @property
    def names(self) -> list[Hashable]:
        return list(self._receivers)

    @property
    def unready(self) -> list[Hashable]:
        return [name for name, receiver in self._receivers.copy().items() if receiver.state is not Agreement.FITTING]

    @property
    def refusals(self) -> dict[Hashable, Exception]:
        found = {name: receiver.refusal for name, receiver in self._receivers.copy().items()}
        return {name: error for name, error in found.items() if error is not None}

    @property
    def quarantined(self) -> dict[Hashable, str]:
        with self._lock:
            troubles = {name: target.trouble for name, target in self.ledger.targets.items()}
            return {name: f"{type(error).__name__}: {error}" for name, error in troubles.items() if error is not None}

    def label(self, name: Hashable) -> str:
        receiver = self._receivers.get(name)
        return "removed" if receiver is None else receiver.link.label

    def waiting_for(self, version: int) -> list[Any]:
        """Return the receivers that have not answered a version."""
        with self._lock:
            return self.ledger.pending.get(version, [])

    def meant(self, names: Sequence[Hashable] | None) -> list[Hashable]:
        """Choose the recipients of the next version. Receivers added later get it, too, but are not waited for.

        Raises:
            ValueError: no receiver has such a name.
        """
        with self._lock:
            self._present = dict.fromkeys(self._receivers.values(), False)
            return self.check(names)

    def check(self, names: Sequence[Hashable] | None) -> list[Hashable]:
        """Return these names, or the names of all receivers.

        Raises:
            ValueError: no receiver has such a name.
        """
        if names is None:
            return self.names
        for name in names:
            if name not in self._receivers:
                known = ", ".join(map(repr, self._receivers)) or "none"
                raise ValueError(f"there is no receiver {name!r} of '{self._model_id}'; there are: {known}")
        return list(names)

    # -- adding and greeting ----------------------------------------------------------------------------------------

    def add(self, name: Hashable, link: WeightLink) -> None:
        if name in self._receivers:
            self.remove(name)
        receiver = ReceiverState(name, link, self.on_message, self.on_end)
        with self._lock:
            if self._is_closed:  # otherwise the new receiver's link would stay open
                raise ClosedError(f"the publisher of '{self._model_id}' is closed")
            self._receivers[name] = receiver
            self.ledger.add(name)
        # Listen only now, because messages from a receiver that is not in the table are dropped, and its first one may
        # already have arrived.
        link.listen(receiver)
        link.opened._follow(lambda: self._greet([receiver]))

    def remove(self, name: Hashable) -> None:
        self.check([name])
        with self._settling():
            receiver = self._receivers.pop(name)
            self._completed += self.ledger.remove(name, self._removed(name, self.ledger.version))
            self._relay.act(self._plan.leave, receiver)
        receiver.link.close()

    def _removed(self, name: Hashable, version: int) -> Ack:
        return Ack("failed", version, ClosedError(f"receiver {name!r} of '{self._model_id}' was removed"))

    def is_published(self, writer: SlotWriter) -> bool:
        """True if the version may be announced; a version that is only packed may still be withdrawn."""
        return writer.version <= self.ledger.version

    def greet(self, store: Store) -> None:
        """Announce the weights to all receivers that do not know them yet."""
        self._store = store
        self._greet(list(self._receivers.values()))
        if self._lacking:
            self._fill()

    def _greet(self, receivers: Iterable[ReceiverState]) -> None:
        store = self._store
        if store is None:
            return
        for receiver in receivers:
            with self._lock:
                if receiver.is_told or not receiver.link.opened.done() or receiver.link.error is not None:
                    continue
                latest = store.latest
                if latest is not None and not self.is_published(latest):
                    # Wait until the version is published or withdrawn.
                    continue
                if latest is not None and not latest.is_in_slot:
                    self._fill()  # HELLO must name memory that every receiver can read
                    continue
                receiver.state = Agreement.ASKED
                if receiver.link.node is not None:
                    self._relay.act(self._plan.join, receiver, self._outgoing(store))
                    continue
                memory, version = (None, 0) if latest is None else (list(latest.name), latest.version)
                try:
                    self.inform(receiver, memory, version)
                except TransferFailed:
                    receiver.state = Agreement.NEW  # the next version tries again

    def inform(self, receiver: ReceiverState, memory: Any, version: int) -> None:
        """Announce the weights to a receiver, with the version in its machine's memory, if there is one."""
        store = self._store
        assert store is not None
        if memory is not None:
            receiver.owed.add(version)
        receiver.send_message(messages.HELLO, store.manifest.to_bytes(), store.extra, store.most, memory, version)

    def appoint(self, receiver: ReceiverState, line: int) -> None:
        """Make a receiver the host of its machine, which receives versions for all receivers there."""
        store = self._store
        assert store is not None
        receiver.send_message(messages.HOST, store.manifest.to_bytes(), store.extra, store.slots, None, 0, line)

    def ask_again(self) -> None:
        """Offer the latest version again to receivers that refused it; if there is no version yet, ask whether the
        weights fit now."""
        with self._settling():
            for receiver in list(self._receivers.values()):
                if receiver.state is Agreement.REFUSED and receiver.link.error is None:
                    receiver.state, receiver.refusal = Agreement.ASKED, None
                    self._offer(receiver)

    def close(self, reason: str = "") -> None:
        """Close all links.

        Args:
            reason: the sender's error, sent to the receivers first; empty if the sender has not failed.
        """
        with self._lock:
            self._is_closed = True
            # Empty the table before closing the links; otherwise the end of a listed receiver's link would be recorded
            # as its death.
            receivers, self._receivers, self._present = list(self._receivers.values()), {}, {}
            self._relay.act(self._plan.close)
        for receiver in receivers:
            if reason and receiver.link.error is None:
                with contextlib.suppress(TransferFailed):  # a receiver that does not read sees only the close
                    receiver.send_message(messages.LEAVE, reason)
            receiver.link.close()

    # -- on a GPU -----------------------------------------------------------------------------------------------

    def demand(self, gpu: str) -> tuple[bool, bool]:
        """Return two flags: whether any receiver reads leaves on that GPU, and whether any needs them in the slot."""
        with self._lock:
            here = [receiver for receiver in self._receivers.values() if receiver.refusal is None]
            there = [receiver for receiver in here if receiver.gpu == gpu]
        return bool(there), len(there) < len(here)

    def filled(self, store: Store, error: Exception | None) -> None:
        """Record that the latest version is in its slot, or that copying failed. If the version is not published yet,
        ``greet`` requests the copy again."""
        with self._settling():
            latest = store.latest
            if latest is None or not self.is_published(latest):
                return
            lacking, self._lacking = self._lacking, {}
            for receiver, lost in lacking.items():
                if self._receivers.get(receiver.name) is not receiver:
                    continue
                if error is not None:
                    self._failed(receiver.name, latest.version, error)
                else:
                    self._show(receiver, store, latest, lost)
        if error is None:
            self.greet(store)

    # -- publishing ---------------------------------------------------------------------------------------------

    def begin(self, version: int, names: Sequence[Hashable], store: Store, writer: SlotWriter) -> bool:
        """Record that packing of a version has begun. Return True if its pieces are sent to other machines as
        ``packed`` reports them."""
        with self._lock:
            there = [receiver for name in names if (receiver := self._receivers.get(name)) is not None]
            far = [receiver for receiver in there if receiver.link.node is not None and receiver.link.error is None]
            if not far:
                return False
            job = Outgoing(version, store, writer, self.seconds, may_wait=self._ahead)
            return self._relay.act(self._plan.begin, job, far)

    def packed(self, version: int, nbytes: int) -> None:
        """Record that ``nbytes`` bytes are packed."""
        self._relay.act(self._plan.packed, version, nbytes)

    def abandon(self, version: int) -> None:
        """Handle a version that could not be packed or published, and that the store has withdrawn."""
        with self._lock:
            self._relay.act(self._plan.abandon, version, None if self._store is None else self._outgoing(self._store))
        if self._store is not None:
            self.greet(self._store)  # receivers added during packing have not been greeted

    def publish(
        self,
        version: int,
        names: Sequence[Hashable],
        store: Store | None = None,
        writer: SlotWriter | None = None,
        called: Sequence[Hashable] = (),
    ) -> list[ReceiverState]:
        """Announce a packed version; return its receivers on other machines, to be passed to ``bring``.

        Args:
            writer: writer of its slot; None if another process owns the slot.
            called: receivers without a link, which get the version as a message; ``answered`` reports the outcome.
        """
        far: list[ReceiverState] = []
        with self._settling():
            there = [self._receivers[name] for name in names if name in self._receivers]
            # A receiver may find an earlier version's memory overwritten, so give it this version instead.
            there_now = [each for each in self._receivers.values() if each.is_told and each.link.error is None]
            late = [each for each in there_now if each not in self._present or (self._ahead and each.owed)]
            gone = {name: self._removed(name, version) for name in names if name not in self._receivers}
            for name in called:
                if name not in self.ledger.targets:
                    self.ledger.add(name)
            # A greeted receiver may answer at once, so let the ledger expect the answer first.
            if self.ledger.begin(version, (*names, *called), gone):
                self._completed.append(version)
            if store is None or writer is None:
                there = []
            else:
                writer.publish()
                self.greet(store)
            for receiver in there:
                assert writer is not None
                error = receiver.link.error
                if receiver.refusal is not None and self._present.get(receiver, True):
                    self._failed_alone(receiver.name, version, receiver.refusal)
                if error is not None:
                    self._failed(receiver.name, version, receiver.refusal or error)
                elif not receiver.is_told:
                    pass  # the greeting will announce the version
                elif receiver.link.node is not None:
                    far.append(receiver)
                else:
                    self._tell(receiver, version, list(writer.name), clock.monotonic())
            for receiver in late:  # late receivers are not waited for, but they get the version, too
                if receiver not in there and store is not None and writer is not None:
                    self._show(receiver, store, writer)
        return far

    def has_begun(self, version: int) -> bool:
        """True if pieces of the version were sent to other machines while it was being packed."""
        return self._plan.job is not None and self._plan.job.number == version

    def bring(self, version: int, far: list[ReceiverState], store: Store, writer: SlotWriter) -> None:
        """Send a version to other machines."""
        with self._lock:
            there = [each for each in far if self._receivers.get(each.name) is each and each.link.error is None]
            job = self._plan.job
            if not isinstance(job, Outgoing) or job.number != version or job.writer is not writer:
                job = Outgoing(version, store, writer, self.seconds, may_wait=self._ahead)
            self._relay.act(self._plan.publish, job.publish(), there)

    def _tell(self, receiver: ReceiverState, version: int, memory: Any, moment: float | None) -> None:
        if len(receiver.owed) >= _MOST_OWED:  # the receiver's next answer brings it the latest version
            return
        if memory is not None:
            receiver.owed.add(version)
        try:
            receiver.send_message(messages.PUBLISH, version, memory, moment)
        except TransferFailed as error:
            self._failed(receiver.name, version, error)

    def end(self, receivers: Iterable[ReceiverState], version: int, memory: Any, error: Exception | None) -> None:
        """Announce a version that has arrived on these receivers' machine, or record its failure."""
        with self._settling():
            for receiver in receivers:
                if error is not None:
                    self._failed(receiver.name, version, error)
                elif receiver.is_told:
                    self._tell(receiver, version, memory, None)

    # -- answers ------------------------------------------------------------------------------------------------

    def on_message(self, receiver: ReceiverState, message: LinkMessage) -> None:
        what, *facts = message
        with self._settling():
            if self._receivers.get(receiver.name) is not receiver:
                return
            if what == messages.NEED:
                receiver.gpu = ""
                self._lacking[receiver] = facts[1]
                self._fill()
            elif what == messages.ACK:
                self._acked(receiver, *facts)
            elif what in FROM_HOSTS:
                self._relay.on_message(receiver, what, *facts)

    def _offer(self, receiver: ReceiverState) -> None:
        """Offer the latest version to a receiver that refused it; if there is none yet, ask whether the weights fit."""
        store = self._store
        latest = None if store is None else store.latest
        if store is None or latest is None:
            self._tell(receiver, 0, None, None)
        elif self.is_published(latest) and latest.is_in_slot:
            self._show(receiver, store, latest)
        else:
            self._lacking.setdefault(receiver)
            self._fill()

    def _show(self, receiver: ReceiverState, store: Store, latest: SlotWriter, lost: Any = None) -> None:
        if receiver.link.node is None:
            self._tell(receiver, latest.version, list(latest.name), None)
        elif lost is None:
            self._relay.act(self._plan.catch_up, receiver, self._outgoing(store))
        else:
            self._relay.act(self._plan.lost, receiver, lost, self._outgoing(store))

    def _outgoing(self, store: Store) -> Outgoing | None:
        """Return the latest version for receivers on other machines."""
        latest = store.latest
        if latest is None:
            return None
        return Outgoing(latest.version, store, latest, self.seconds, may_wait=self._ahead).publish()

    def on_end(self, receiver: ReceiverState, error: Exception) -> None:
        with self._settling():
            if self._receivers.get(receiver.name) is not receiver:
                return
            receiver.answered(receiver.refusal or error)
            self._gone(receiver, error)
            self._relay.act(self._plan.leave, receiver)

    def _acked(self, receiver: ReceiverState, version: int, failure: bytes | None, gpu: str, *facts: Any) -> None:
        lags = len(receiver.owed) >= _MOST_OWED
        receiver.owed.discard(version)
        receiver.gpu = gpu
        if not version or failure is None:
            receiver.answered(None if failure is None else unpack_error(failure))
        if not version:
            if receiver.refusal is not None:
                if receiver in self._present:
                    self._present[receiver] = True
                self._gone(receiver, receiver.refusal)
            return
        self._answer(receiver, version, failure, *facts)
        store = self._store
        if lags and store is not None and store.latest is not None and self.is_published(store.latest):
            self._show(receiver, store, store.latest)

    def _answer(self, receiver: ReceiverState, version: int, failure: bytes | None, *facts: Any) -> None:
        *seconds, digests = facts
        if failure is not None:
            self._failed(receiver.name, version, unpack_error(failure))
        elif self._verify is not None:
            receiver.verifying.add(version)
            self._verify(receiver, Ack("applied", version, None, *seconds), digests)
        else:
            self._answered(receiver.name, Ack("applied", version, None, *seconds))

    def verified(self, receiver: ReceiverState, ack: Ack) -> None:
        """Record the result of comparing a receiver's digests."""
        with self._settling():
            receiver.verifying.discard(ack.version)
            if self._receivers.get(receiver.name) is receiver:
                self._answered(receiver.name, ack)

    def _failed(self, name: Hashable, version: int, error: Exception) -> None:
        self._answered(name, Ack("failed", version, error))

    def _failed_alone(self, name: Hashable, version: int, error: Exception) -> None:
        if self.ledger.settle(name, version, Ack("failed", version, error), error):
            self._completed.append(version)

    def _answered(self, name: Hashable, ack: Ack) -> None:
        compared = self._receivers[name].verifying if name in self._receivers else ()
        self._completed += self.ledger.answer(name, ack.version, ack, ack.error, compared=compared)

    def _gone(self, receiver: ReceiverState, error: Exception) -> None:
        for version in self.ledger.pending:
            if version not in receiver.verifying:  # otherwise the version was answered and is being verified
                self._failed_alone(receiver.name, version, error)

    def answered(self, name: Hashable, version: int, error: Exception | None) -> None:
        """Record the outcome of a message."""
        with self._settling():
            self._answered(name, Ack("applied" if error is None else "failed", version, error))

    def fail(self, name: Hashable, version: int, error: Exception) -> None:
        """Record that a receiver is late, or too many versions behind."""
        with self._settling():
            self._failed_alone(name, version, error)

    def finish(self, version: int) -> Mapping[Any, Ack] | None:
        """Forget a version; return its answers, or None if it was already forgotten."""
        with self._lock:
            return self.ledger.finish(version)

    def ack_of(self, name: Hashable, version: int) -> Ack | None:
        """Return the outcome of a published version at a receiver that was added afterwards; None while unknown."""
        with self._lock:
            receiver, target = self._receivers.get(name), self.ledger.targets.get(name)
            if receiver is None or target is None:
                return self._removed(name, version)
            if target.acked >= version:
                return Ack("applied", version)
            error = receiver.refusal or receiver.link.error or target.trouble
            return None if error is None else Ack("failed", version, error)

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        """Hold the lock; then report completed versions and wake all waits."""
        with self._lock:
            yield
            completed, self._completed = self._completed, []
        for version in completed:
            self._complete(version)
        self._changed()
