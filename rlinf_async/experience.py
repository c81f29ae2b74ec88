"""``Experience``: the user API for a store of grouped samples: create, connect, put, take, versions, wanted."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Generator
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
    """A channel of grouped samples, which drops samples that are too stale for the trainer.

    Producers put samples with the version of the weights that generated them, and the trainer takes whole groups. An
    experience lives in one node's daemon, so an accepted sample outlives its producer. If a take ends because of an
    error, a process's death or an expired lease, its groups return to the experience, unless they have become too
    stale. A group is confirmed at most once.

    In a coroutine the methods start immediately and return a ``Work`` to await; elsewhere they block.

    Example:
        experience = Experience.create("experience", group=8, max_staleness=2, of="trainer")

        await experience.wanted()                                        # a producer
        await experience.put(sample, version=version, group=problem)

        async with experience.take(groups=64) as batch:                  # the trainer
            train(batch.items, batch.staleness)
    """

    def __init__(self, channel: Channel) -> None:
        """Internal; use ``create`` or ``connect`` to create an instance."""
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

        Experiences share their namespace and lifetime rules with channels.

        Args:
            name: name for ``connect``.
            group: number of samples in a complete group.
            max_staleness: maximum number of versions by which a group's oldest sample may lag behind the trainer's
                version when it is taken.
            lease: seconds that a take may last. When they expire, its groups return, and the end of the take raises
                ``LeaseLost``.
            maxsize: maximum number of samples that are present and not leased; 0 means no bound. A group's first sample
                waits until there is room for the whole group.
            durable: path of a file on the experience's node that outlives the run. It holds the ledger and the samples
                that have not been taken. The next ``create`` with this file continues from it, with leased samples
                returned. With a durable file, a put or the end of a take is done only once it has been written. The
                file survives the death of processes, but not a power failure.
            of: group whose calls to ``publish`` set the trainer's version, instead of ``set_version``.
            order: whether to take groups of the oldest or the newest version first.
            group_timeout: seconds after its first sample at which an incomplete group is closed.
            short_groups: whether to drop the samples of a closed incomplete group, or let them be taken as they are.
            max_bytes: maximum total size of all samples, including leased ones, beyond which puts wait; by default half
                of the node's or container's memory.
            node_rank: the node that hosts the experience.
            cluster: as in ``Channel.create``.

        Raises:
            ConfigError: another run has the durable file open, or it cannot be used; there is no such node; a channel
                has that name.
            TypeError, ValueError: an option has an invalid value.
            RuntimeError: as for ``Channel.create``.
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
        """Connect to the experience with that name; wait for it if it does not exist yet.

        Args, Raises:
            As for ``Channel.connect``; also ConfigError if the name belongs to a channel.
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
            Exception: the reason why it does not exist.
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
        """Put a sample into its group. The put is done once the sample is accepted and, if durable, written to the
        file.

        Args:
            version: version of the weights that generated the sample.
            group: name shared by a group's samples: a number, a str, bytes, None, or a tuple of these. It may be reused
                once the group of that name is complete or closed.
            key: only takes with this key get the group; None lets any take get it.
            timeout: seconds to wait for room, after which the sample is withdrawn.

        Raises:
            ClosedError: the experience is closed.
            OSError: the disk of a durable experience is full; the sample was not put.
            DeadlineExceeded, NodeLost: as for ``Channel.put``.
            TypeError, ValueError: raised immediately if the version is not an integer or is negative, or the group's
                name is invalid.
            SerializationError: raised immediately if the sample cannot be serialized.
        """
        put = self._arguments.put(sample, version, group, packed_key(key), timeout)
        done: NoneOrWork = blocking(self._channel._start(put))
        return done

    def take(self, groups: int = 1, key: Any = None, *, on_stale: OnStale | None = None) -> Take:
        """Take the next groups; they stay in the experience until the block ends without an error.

        Entering the block waits until ``groups`` groups are complete; there may be fewer only at the end of a closed
        experience. Groups that lag more than ``max_staleness`` versions behind the trainer are dropped and counted::

            async with experience.take(groups=64) as batch:     # `with` in a def method or a script
                train(batch.items, batch.staleness)

        Args:
            groups: number of groups to take, at least 1.
            key: take groups that were put with this key, and groups without a key.
            on_stale: if given, stale groups are taken, too. ``on_stale(samples, staleness)`` is called for each stale
                group, and returns the samples that replace it in the batch, for example with importance weights; an
                empty list omits the group.

        Raises:
            LeaseLost: raised at the end of the block, or by ``batch.done()``, if the lease has timed out.
            EndOfChannel: raised on entering if the experience is closed and no groups are left.
            ValueError: the experience can never hold that many groups.
            OSError: raised at the end of the block if a durable experience could not record it; the groups have been
                returned.
            NodeLost: the node of the experience is lost.
        """
        get = self._arguments.take(groups, key, stale_too=on_stale is not None)
        return Take(lambda: self._channel._start(get), self._settle, on_stale)

    def _settle(self, get: Get[Any], groups: int) -> Work[None]:
        roster, what = self._known(), f"the end of a take from experience '{self.name}'"
        operation = operations.SettleGroups(roster["number"], get.number, groups)
        return self._channel._bound().request(operation, node=roster["nodes"][0], what=what)

    def wanted(self) -> Any:
        """Wait while any sample generated now would be too stale by the time it is taken.

        A new sample would be too stale if more groups are ahead of it than the trainer takes in ``max_staleness + 1``
        versions. There is no wait while a take is waiting, or before the trainer has set a version. Nothing is
        reserved, so if several producers continue at the same time, some may generate a stale sample.

        Returns:
            The trainer's version; None before the first version. In a coroutine, a ``Work`` that resolves to it.

        Raises:
            PeerLost: the trainer has ended and is not restarted; the error contains its last output.
            ClosedError: the experience is closed.
        """
        return blocking(self._channel._start(self._arguments.wanted()))

    # -- versions -----------------------------------------------------------------------------------------------

    def set_version(self, version: int, *, restart: bool = False) -> NoneOrWork:
        """Set the trainer's version of the weights; all of the trainer's ranks may call this.

        Args:
            restart: True if the trainer has returned to a checkpoint, so that the version may be lower than before. Not
                needed after a restart of the trainer's process.

        Raises:
            ValueError: the version is lower than before; or another live trainer, or the group ``of=``, sets the
                versions.
            TypeError: the version is not an integer.
        """
        version = whole_number(version, "version", f"set_version() of experience '{self.name}'")
        me, client = context.identity, self._channel._bound()
        trainer = f"driver {client.endpoint}" if me is None else f"group '{me.group_name}'"

        telling = self._request(client, operations.SetVersion, trainer, version, restart)
        told: NoneOrWork = blocking(client.run(telling, what=f"set_version() of experience '{self.name}'"))
        return told

    # -- queries ------------------------------------------------------------------------------------------------

    def stats(self) -> Any:
        """Return the sample counts; put = taken + present + leased + dropped always holds.

        Returns:
            An object with ``put``, ``taken``, ``present``, ``leased``, ``dropped`` (a dict that maps each reason to a
            count), ``incomplete`` (a number of groups) and ``version`` (the trainer's). In a coroutine, a ``Work`` that
            resolves to it.

        Raises:
            ClosedError: the experience is closed, and all its samples have been taken.
            NodeLost: its node is lost.
        """
        client = self._channel._bound()
        return blocking(client.run(self._count(client), what=f"stats() of experience '{self.name}'", abandonable=True))

    async def _count(self, client: NodeClient) -> SampleLedger:
        return SampleLedger(**await self._request(client, operations.CountSamples))

    def state_dict(self) -> Any:
        """Return the content for a checkpoint: samples that have not been taken, counts, the trainer's version.

        Returns:
            A dict that ``pickle`` and ``torch.save`` accept. In a coroutine, a ``Work`` that resolves to it.

        Raises:
            ClosedError, NodeLost: as for ``stats``.
        """
        query = QueueQuery("state_dict() of", self.name, None, b"", "peek", _show)
        query.noun = "experience"
        return blocking(self._channel._start(query))

    def load_state_dict(self, state: dict[str, Any]) -> NoneOrWork:
        """Load the content of another experience; nothing may have been put into this one yet.

        Raises:
            ValueError: samples have already been put; or the content needs more room than ``maxsize``.
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
        await self._request(client, operations.CountEarlier, state["version"], state["taken"], state["dropped"])
        for key, group, version, sample in state["samples"]:
            await self._channel._start(self._arguments.put(sample, version, group, key, None)).async_wait()

    async def _request(self, client: NodeClient, kind: Callable[..., operations.Operation[Any]], *facts: Any) -> Any:
        roster = await self._opened()
        try:
            return await client.request(kind(roster["number"], *facts), node=roster["nodes"][0]).async_wait()
        except ClosedError as error:  # the daemon no longer knows the name
            raise ClosedError(f"experience '{self.name}': {error}") from None

    async def _opened(self) -> registration.Roster:
        await self._channel
        assert self._channel._replicas is not None
        self._channel._replicas.check()  # the channel may have been passed on before it existed, and since been closed
        return self._known()

    def _known(self) -> registration.Roster:
        roster = self._channel._roster
        assert roster is not None
        return roster

    # -- close ------------------------------------------------------------------------------------------------

    def close(self, *, discard: bool = False) -> Any:
        """Close the experience: puts fail, and incomplete groups are closed; takes continue until all groups are taken.

        A durable experience keeps its file, with the groups that were neither taken nor discarded.

        Args:
            discard: also discard the samples; takes that have already begun may still be confirmed.

        Raises:
            OSError: the disk of a durable experience is full; its file may keep samples that were dropped or discarded.
        """
        return self._channel.close(discard=discard)

    async def aclose(self, *, discard: bool = False) -> None:
        """Close the experience, as ``close`` does."""
        await self._channel.aclose(discard=discard)


async def _create(client: NodeClient, name: str, options: ExperienceOptions, node_rank: int) -> registration.Roster:
    # Look the name up first: creating an experience under a taken name would open the existing one's file, and then
    # close it with its groups. tests/experience/test_durable.py::test_a_second_create_of_a_name_leaves_its_file_alone
    if options.durable and (known := await _known(client, name)) is not None:
        return known
    try:
        return await registration.create(
            client,
            name,
            maxsize=options.maxsize or MAX_INTEGER,  # with a bound, a put waits until its sample is accepted
            # Set no byte bound here, because the experience itself has one: in this process, puts that wait for room
            # must not hold back puts that complete groups and so make room.
            # tests/experience/test_experiences.py::test_puts_that_wait_for_room_do_not_keep_back_those_that_make_it
            max_bytes=MAX_INTEGER,
            distributed=False,
            node_rank=node_rank,
            experience=options.to_data(),
        )
    except ConfigError:
        # Another process may just have created the experience, and have the file open.
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
