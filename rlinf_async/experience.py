"""``Experience``, the user API of a store of samples in groups: create, connect, put, take, versions, wanted."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

from rlinf_async._channels import registration
from rlinf_async._channels.request import Get, QueueQuery
from rlinf_async._channels.state.channel_keys import key_of
from rlinf_async._client import registry
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._core.argument_checks import MAX_INTEGER, seconds, whole_number
from rlinf_async._core.names import check_channel_name
from rlinf_async._core.own_logger import own_logger
from rlinf_async._experience.experience_arguments import ExperienceArguments, options_of, packed_key
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.ledger import SampleLedger
from rlinf_async._experience.taking import OnStale, Take
from rlinf_async._worker import context
from rlinf_async.channel import Channel
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded
from rlinf_async.work import NoneOrWork, Work, blocking

logger = own_logger(__name__)


class Experience:
    """Channel of samples in groups, which drops samples that are too stale for the trainer.

    Producers put samples with the version of the weights that made them, and the trainer takes whole groups. An
    experience lives in the daemon of one node: an accepted sample outlives its producer. If a take ends with an error,
    a death or the end of its lease, its groups return to the experience, unless they are too stale by then. A group is
    confirmed at most once.

    In a coroutine the methods start at once and return a ``Work`` to await; elsewhere they block.

    Example:
        experience = Experience.create("experience", group=8, max_staleness=2, of="trainer")

        await experience.wanted()                                        # a producer
        await experience.put(sample, version=version, group=problem)

        async with experience.take(groups=64) as batch:                  # the trainer
            train(batch.items, batch.staleness)
    """

    def __init__(self, channel: Channel) -> None:
        """Make an experience object. Users call ``create`` or ``connect``."""
        self._channel = channel
        channel._noun = "experience"
        self._arguments = ExperienceArguments(channel.name)

    def __repr__(self) -> str:
        return repr(self._channel)

    # -- creation -----------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        name: str,
        group: int = 1,
        max_staleness: int = 2,
        lease: float = 600.0,
        maxsize: int = 0,
        durable: str | Path | None = None,
        *,
        of: str | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        group_timeout: float | None = None,
        short_groups: Literal["drop", "take"] = "drop",
        max_bytes: int = 0,
        node_rank: int = 0,
        cluster: registry.HasClient | None = None,
    ) -> Experience:
        """Create an experience; if one with that name exists, log a warning and connect to it.

        It shares the name space and the lifetime of channels.

        Args:
            name: name for ``connect``.
            group: samples of a complete group.
            max_staleness: versions that the oldest sample of a group may be behind the trainer's when it is taken.
            lease: seconds that a take may last; afterwards its groups go back, and its end raises ``LeaseLost``.
            maxsize: samples that may be present and not leased; 0 means no bound. The first sample of a group waits
                for room for the whole group.
            durable: path of a file on the experience's node, which outlives the run and holds the samples that are not
                taken, and the ledger. The next ``create`` with it continues, and leased samples are back. A put and the
                end of a take are then done when they are written. The file outlives killed processes, not a loss of
                power.
            of: group whose publications (``publish``) set the trainer's version, in place of ``set_version``.
            order: groups of the oldest version first, or of the newest.
            group_timeout: seconds from the first sample of a group after which an incomplete group is closed.
            short_groups: drop the samples of a closed incomplete group, or take them as they are.
            max_bytes: size in bytes of all samples together, leased ones included, beyond which puts wait; by default
                half of the memory of the node, or of its container.
            node_rank: the node that keeps it.
            cluster: as in ``Channel.create``.

        Raises:
            ConfigError: another run has the durable file open, or it cannot be used; there is no such node; a channel
                has that name.
            TypeError, ValueError: an option has an invalid value.
            RuntimeError: as ``Channel.create``.
        """
        check_channel_name(name, "experience")
        options = options_of(
            name, group=group, max_staleness=max_staleness, lease=lease, maxsize=maxsize, durable=durable, of=of,
            order=order, group_timeout=group_timeout, short_groups=short_groups, max_bytes=max_bytes,
        )  # fmt: skip
        client = registry.client_of(cluster)
        node_rank = whole_number(node_rank, "node_rank", f"experience '{name}'")
        experience = cls(Channel(name, options.maxsize, client))
        experience._channel._open(client, _create(client, name, options, node_rank))
        return experience

    @classmethod
    def connect(
        cls, name: str, *, cluster: registry.HasClient | None = None, timeout: float | None = None
    ) -> Experience:
        """Connect to the experience of that name; wait for it if it does not exist yet.

        Args, Raises:
            As ``Channel.connect``; ConfigError: it is a channel.
        """
        check_channel_name(name, "experience")
        if timeout is not None:
            timeout = seconds(timeout, f"connect() to experience '{name}'")
        client = registry.client_of(cluster)
        experience = cls(Channel(name, 0, client))
        experience._channel._open(client, registration.find(client, name, timeout, is_experience=True))
        return experience

    def __await__(self) -> Generator[Any, Any, Experience]:
        """Wait until the experience exists.

        Raises:
            Exception: the reason why it does not.
        """
        yield from self._channel.__await__()
        return self

    def __reduce__(self) -> Any:
        return Experience, (self._channel,)

    @property
    def name(self) -> str:
        """Name of the experience, for ``connect``."""
        return self._channel.name

    # -- samples ------------------------------------------------------------------------------------------------

    def put(
        self, sample: Any, *, version: int, group: Any = None, key: Any = None, timeout: float | None = None
    ) -> NoneOrWork:
        """Put a sample into its group; done when the experience has accepted it, and a durable one has written it.

        Args:
            version: version of the weights that made the sample.
            group: name shared by the samples of a group: a number, a text, bytes, None, or a tuple of these. It may be
                used again once a group of that name is complete or closed.
            key: only takes with this key have the group; None: any take.
            timeout: seconds that it may wait for room; then the sample is withdrawn.

        Raises:
            ClosedError: the experience is closed.
            OSError: the disk of a durable experience is full; the sample was not put.
            DeadlineExceeded, NodeLost: as ``Channel.put``.
            TypeError, ValueError: at once, the version is not a whole number, or negative; the group's name is invalid.
            SerializationError: at once, the sample cannot travel.
        """
        put = self._arguments.put(sample, version, group, packed_key(key), timeout)
        done: NoneOrWork = blocking(self._channel._start(put))
        return done

    def take(self, groups: int = 1, key: Any = None, *, on_stale: OnStale | None = None) -> Take:
        """Take the next groups, which stay in the experience until the block ends without an error.

        It waits until that many groups are complete, and takes fewer only at the end of a closed experience. Groups
        that are more than ``max_staleness`` versions behind the trainer's are dropped instead, and counted::

            async with experience.take(groups=64) as batch:     # `with` in a def method or a script
                train(batch.items, batch.staleness)

        Args:
            groups: at least 1.
            key: take groups that were put with this key as well as those without one.
            on_stale: take stale groups too: ``on_stale(samples, staleness)`` is called with each, and returns the
                samples that replace them in the batch, for example with importance weights; an empty list leaves them
                out.

        Raises:
            LeaseLost: at the end of the block, or from ``batch.done()``: the lease has timed out.
            EndOfChannel: at the beginning, the experience is closed, and no groups are left.
            ValueError: that many groups can never be present.
            OSError: at the end of the block, a durable experience could not write it; the groups have returned.
            NodeLost: the node of the experience is lost.
        """
        get = self._arguments.take(groups, key, stale_too=on_stale is not None)
        return Take(lambda: self._channel._start(get), self._settle, on_stale)

    def _settle(self, get: Get[Any], groups: int) -> Work[None]:
        roster, what = self._known(), f"the end of a take from experience '{self.name}'"
        operation = operations.SettleGroups(roster["number"], get.number, groups)
        return self._channel._bound().request(operation, node=roster["nodes"][0], what=what)

    def wanted(self) -> Any:
        """Wait while a sample made now could only be stale when it is taken.

        A new sample would be stale if more groups are ahead of it than the trainer takes in ``max_staleness + 1``
        versions. The wait ends at once while a take waits, and before the trainer has set a version. It reserves
        nothing: if several producers continue at the same time, some may make a sample too many.

        Returns:
            The trainer's version, None before the first; in a coroutine a ``Work`` for it.

        Raises:
            PeerLost: the trainer has ended and does not return; the text has its last output.
            ClosedError: the experience is closed.
        """
        return blocking(self._channel._start(self._arguments.wanted()))

    # -- versions -----------------------------------------------------------------------------------------------

    def set_version(self, version: int, *, restart: bool = False) -> NoneOrWork:
        """Set the trainer's version of the weights; all its ranks may call this.

        Args:
            restart: the trainer has gone back to a checkpoint, so the version may be lower than before. A trainer
                process that was restarted need not pass it.

        Raises:
            ValueError: the version goes back; or another live trainer, or the group of ``of=``, sets the versions.
            TypeError: it is not a whole number.
        """
        version = whole_number(version, "version", f"set_version() of experience '{self.name}'")
        me, client = context.identity, self._channel._bound()
        trainer = f"driver {client.endpoint}" if me is None else f"group '{me.group_name}'"

        async def tell() -> None:
            roster = await self._opened()
            operation = operations.SetVersion(roster["number"], trainer, version, restart)
            await client.request(operation, node=roster["nodes"][0]).async_wait()

        told: NoneOrWork = blocking(client.run(tell(), what=f"set_version() of experience '{self.name}'"))
        return told

    # -- queries ------------------------------------------------------------------------------------------------

    def stats(self) -> Any:
        """Return the counts of the samples: put = taken + present + leased + dropped by reason.

        Returns:
            An object with ``put``, ``taken``, ``present``, ``leased``, ``dropped`` (a dict by reason), ``incomplete``
            (groups) and ``version`` (the trainer's). In a coroutine a ``Work`` for it.

        Raises:
            ClosedError: the experience is closed, and everything in it has been taken.
            NodeLost: its node is lost.
        """
        client = self._channel._bound()
        return blocking(client.run(self._count(client), what=f"stats() of experience '{self.name}'", abandonable=True))

    async def _count(self, client: NodeClient) -> SampleLedger:
        roster = await self._opened()
        counts = await client.request(operations.CountSamples(roster["number"]), node=roster["nodes"][0]).async_wait()
        return SampleLedger(**counts)

    def state_dict(self) -> Any:
        """Return the content for a checkpoint: samples that are not taken, counts, the trainer's version.

        Returns:
            A dict that ``pickle`` and ``torch.save`` take; in a coroutine a ``Work`` for it.

        Raises:
            ClosedError, NodeLost: as ``stats``.
        """
        query = QueueQuery("state_dict() of", self.name, None, b"", "peek", _show)
        query.noun = "experience"
        return blocking(self._channel._start(query))

    def load_state_dict(self, state: dict[str, Any]) -> NoneOrWork:
        """Load the content of another experience into one that nothing was put into yet.

        Raises:
            ValueError: something was put already; or the content needs more room than ``maxsize``.
        """
        client = self._channel._bound()
        what = f"load_state_dict() of experience '{self.name}'"
        loaded: NoneOrWork = blocking(client.run(self._load(client, state), what=what))
        return loaded

    async def _load(self, client: NodeClient, state: dict[str, Any]) -> None:
        roster = await self._opened()
        maxsize, size = roster["experience"]["maxsize"], roster["experience"]["group"]
        groups = Counter((key, group) for key, group, _, _ in state["samples"]).values()
        room = sum(math.ceil(count / size) * size for count in groups)  # each group reserves room for all its samples
        if 0 < maxsize < room:
            raise ValueError(
                f"load_state_dict() of experience '{self.name}': {len(state['samples'])} samples and what their groups "
                f"lack do not fit into maxsize={maxsize}: create it with {room} or more"
            )
        earlier = operations.CountEarlier(roster["number"], state["version"], state["taken"], state["dropped"])
        await client.request(earlier, node=roster["nodes"][0]).async_wait()
        for key, group, version, sample in state["samples"]:
            await self._channel._start(self._arguments.put(sample, version, group, key, None)).async_wait()

    async def _opened(self) -> registration.Roster:
        await self._channel
        assert self._channel._replicas is not None
        self._channel._replicas.check()  # the channel may have been passed on before it existed, and be closed by now
        return self._known()

    def _known(self) -> registration.Roster:
        roster = self._channel._roster
        assert roster is not None
        return roster

    # -- close ------------------------------------------------------------------------------------------------

    def close(self, *, discard: bool = False) -> Any:
        """Close the experience: puts fail, incomplete groups are closed. Takes continue until all groups are taken.

        A durable experience keeps its file, with the groups that were neither taken nor discarded.

        Args:
            discard: also throw away the samples; takes that have begun may still be confirmed.

        Raises:
            OSError: the disk of a durable experience is full; its file may keep samples that were dropped or discarded.
        """
        return self._channel.close(discard=discard)

    async def aclose(self, *, discard: bool = False) -> None:
        """Close the experience, as ``close``."""
        await self._channel.aclose(discard=discard)


async def _create(client: NodeClient, name: str, options: ExperienceOptions, node_rank: int) -> registration.Roster:
    # Look the name up first: creating under a taken name would open the file, and close it with the groups in it.
    # tests/experience/test_durable.py::test_a_second_create_of_a_name_leaves_its_file_alone
    if options.durable and (known := await _known(client, name)) is not None:
        return known
    try:
        return await registration.create(
            client,
            name,
            maxsize=options.maxsize or MAX_INTEGER,  # with a bound, a put waits until its sample is accepted
            # No byte bound here, as the experience has it: puts that wait for room must not hold back, in this process,
            # the puts that complete the groups and so make room.
            # tests/experience/test_experiences.py::test_puts_that_wait_for_room_do_not_keep_back_those_that_make_it
            max_bytes=MAX_INTEGER,
            distributed=False,
            node_rank=node_rank,
            experience=options.to_data(),
        )
    except ConfigError:
        # Another process may have created it meanwhile and have the file open.
        if options.durable and (known := await _known(client, name)) is not None:
            return known
        raise


async def _known(client: NodeClient, name: str) -> registration.Roster | None:
    with contextlib.suppress(DeadlineExceeded, ClosedError):
        known = await registration.find(client, name, 0.0, is_experience=True)
        logger.warning("there is an experience named '%s' already: connected to it", name)
        return known
    return None


def _show(items: list[Any]) -> dict[str, Any]:
    if not items:
        raise ClosedError("the experience is closed, and everything in it has been taken")
    version, taken, dropped, facts = items[0][1]()
    samples = [
        (key, key_of(name), made_by, make())
        for (_, key, name, made_by), (_, make) in zip(facts, items[1:], strict=True)
    ]
    return {"version": version, "taken": taken, "dropped": dropped, "samples": samples}
