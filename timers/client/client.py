"""Owns the caller's side: arms, reads, changes and cancels timers directly on Redis, in the words of the HTTP API."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from timers.client.actions import Act, BulkAction, Counts, Stop, begun, carry_out, purge_calls
from timers.client.feed import Event, Feed
from timers.client.fleet import (
    Declared,
    Fleet,
    HeldBy,
    PrefixView,
    Stats,
    forget_prefix,
    read_fleet,
    read_prefixes,
    read_retrying,
    read_stats,
)
from timers.client.group_commit import ArmAll, GroupCommit
from timers.client.opening import LEVELS, listed, open_ledger, recall_shards, refusal_of
from timers.client.planning import (
    Reason,
    Results,
    Wish,
    accepted,
    armed,
    changed_progress,
    plan,
    refusal,
    tried,
)
from timers.core.calls import Armed, ChangeFields, Delay, FilterFields, Time, Timers
from timers.core.fields import check_callers_prefix, check_id, check_prefix, check_traceparent, check_version, is_own
from timers.core.hooks import CALLS
from timers.core.model import Status, Timer
from timers.core.shapes import Action, Durability
from timers.core.spec import NewTimer, TimerChange, own_due_ms
from timers.embedded import reachable_url
from timers.errors import InvalidInput, Running, Unavailable
from timers.logs import get_logger
from timers.settings import Settings, load_worker_settings
from timers.store import keys, queries
from timers.store.callers import Quota, Quotas
from timers.store.codec import encode_act, spec_of
from timers.store.cooperative import Turn, cooperatively
from timers.store.filters import Filter, Visible
from timers.store.identity import Loss
from timers.store.listing import LIST_LIMIT, Page, PageRequest, read_page, read_pages
from timers.store.membership import Member
from timers.store.notifications import changes
from timers.store.queries import Aside
from timers.store.servers import connect
from timers.store.servers.durability import FSYNC, WAITS
from timers.store.store import ARM_LIMIT, Arming, Reply, Store

if TYPE_CHECKING:
    from timers.client.ledger_first import LedgerFirst
    from timers.ledger.database import Database

BATCH_LIMIT: Final = 1000
"""Timers that one batch may arm."""

_TRANSACTION_LIMIT: Final = 2 * ARM_LIMIT
"""Timers that are armed together if the ledger gets them first: a transaction costs more than a call."""

_log = get_logger("timers.client")


class TimerClient(Timers):
    """Timers of one db. Safe to share within an event loop; close it there, or use it as an async context manager.

    Every method raises `Unavailable` while Redis is down, `InvalidInput` for bad values, and a `Refused` if the timer's
    state forbids the call.
    """

    _by: str | None = None
    _quota: Quota | None = None
    _ledger: "LedgerFirst | None" = None
    _durability: Durability | Literal[""]
    """Of timers that ask for none; empty: `fast`, without saying so."""
    _visible: Visible | None = None
    _any_loop = False
    """Whether its connections are somebody else's, who knows on which event loops they may be used."""
    _loop: asyncio.AbstractEventLoop | None = None
    """The event loop on which its connections are open."""
    _lives: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        url: str | None = None,
        *,
        edit_lock_ms: int = 0,
        ledger: str | None = None,
        durability: Durability = "ledger",
    ) -> None:
        """A client for a Redis URL whose db number is the dedicated one, and the URL of the ledger's database if the
        service has one; `durability` is that of timers that ask for none, `ledger` only if there is one. Without a URL
        it finds what the command line finds: `TIMERS_REDIS_URL`, `TIMERS_LEDGER_URL` and `TIMERS_DURABILITY`, else the
        server of a running `timers dev`. Connects at the first call. Raises InvalidInput, and ConfigurationError for a
        URL that cannot be used."""
        check_options(edit_lock_ms, durability)
        self._connections = None if url is None else connect(url)
        self._store: Store | None = None
        self._edit_lock_ms, self._keeps_cancelled = edit_lock_ms, True
        self._database, self._durability = open_ledger(ledger), durability

    def acting(self, by: str | None, quota: Quota | None = None, visible: Visible | None = None) -> Self:
        """A client that acts for a named caller: history and log record the name, creates and retries beyond the quota
        raise TooManyPending, and errors name only visible prefixes."""
        if (by, quota, visible) == (self._by, self._quota, self._visible):
            return self
        client = copy(self)
        client._by, client._quota, client._visible = by, quota, visible
        return client

    async def _changing(self, prefix: str, id: str) -> tuple[Store, str, str, str]:
        """Before a change of a timer, which needs the ledger if there is one: its checked prefix and id, and the life
        of its shard in which it is to be changed, empty if any will do."""
        prefix, id = check_prefix(prefix), check_id(id)
        store = await self._open()
        if self._ledger is not None:
            return store, prefix, id, await self._ledger.ready((prefix, id))
        return store, prefix, id, self._lives.get(store.shard_of(prefix, id), "")

    async def _done(
        self, act: str, answer: Reply, prefix: str, id: str, life: str, *, code: str = "changed", removed: bool = False
    ) -> Timer:
        """The timer after a change, if the reply has this code; raises the error for any other. The ledger has it then
        too, and the log tells of it if it was made in somebody's name."""
        timer = accepted(answer, prefix, id, (code,), self._quota)
        if self._ledger is not None:
            await self._ledger.keep(timer, life, removed=removed)
        if self._by is not None:
            _log.info("a caller changed a timer", act=act, timer=timer.key, by=self._by)
        return timer

    def without_ledger(self) -> Self:
        """A client for code that writes to the ledger itself."""
        client = copy(self)
        client._database = client._ledger = None
        client._durability = ""
        if self._store is not None:
            client._use(self._store)
        return client

    def _within(self, lives: Mapping[int, str]) -> Self:
        """This client without a ledger, changing timers only in these lives of their shards."""
        client = copy(self)
        client._lives = lives
        return client

    def _use(self, store: Store) -> Store:
        self._store, self._feed, self._declared = store, Feed(partial(changes, store)), Declared(store)
        self._quotas = Quotas(store, edit_lock_ms=self._edit_lock_ms)
        arm: ArmAll = self._quotas.arm
        together = ARM_LIMIT
        if self._database is not None:
            from timers.client.ledger_first import LedgerFirst  # noqa: PLC0415 (what it needs is an extra)

            self._ledger = LedgerFirst(store, self._quotas, self._database)
            arm, together = self._ledger.arm, _TRANSACTION_LIMIT
        elif self._durability == "ledger":
            self._durability = ""
        self._group_commit = GroupCommit(store, arm, together)
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all listeners and close the connections."""
        if self._loop is not None:
            self._check_loop()
        await self.end_events()
        if self._connections is not None:
            await self._connections.close()
        if self._database is not None:
            await self._database.close()
        self._loop = None

    @property
    def ledger(self) -> "Database | None":
        """The ledger's database, if there is a ledger."""
        return self._database

    async def end_events(self) -> None:
        """End all listeners of `events` and accept no more."""
        if self._store is not None:
            await self._feed.close()

    async def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        given = {"prefix": prefix, **fields} if id is None else {"prefix": prefix, "id": id, **fields}
        traceparent = given.pop("traceparent", None)
        return (await self.arm(NewTimer.parse(given), traceparent=traceparent)).timer

    async def arm(self, new: NewTimer, *, traceparent: str | None = None) -> Armed:
        if traceparent is not None:
            check_traceparent(traceparent)
        store = await self._open()
        refusals = self._declared.refusals if self._ledger is None else partial(self._ledger.refusals, self._declared)
        if refused := await refusals([new.prefix], self._visible):
            raise refused[new.prefix]
        arming = plan(new, store.clock.now_ms(), traceparent, self._by, self._durability)
        if (level := arming.durability or "fast") != "fast":
            lacks = await self._lacks(level, store.shard_of(arming.prefix, arming.id))
            if lacks is not None:
                raise lacks
        return armed(await self._group_commit.arm(arming, self._quota), arming, self._quota)

    async def _lacks(self, durability: Durability, shard: int) -> InvalidInput | None:
        """The error for a durability that this service cannot give to a shard. Replicas may come and go, so if they are
        only this client's default, the answer says that there was none."""
        if durability in ("fast", self._durability) and durability != FSYNC:
            return None
        store, has_ledger = await self._open(), self._ledger is not None
        return await refusal_of(store, durability, has_ledger=has_ledger, root=keys.root(shard))

    async def batch(self, news: Iterable[Wish], *, traceparent: str | None = None) -> Results:
        """Arm up to 1,000 timers, each given as a NewTimer or by its fields. Returns a result for each, in order; an
        error given in place of a timer is its result.
        Raises Unavailable for the whole batch, unless the ledger has some of it; timers armed before stay, so repeat it
        with ids and `if_exists: keep`."""
        news = wished(news)
        if traceparent is not None:
            check_traceparent(traceparent)
        await self._open()
        arm = partial(self._arm_some, traceparent, asyncio.Lock())
        return await self._group_commit.in_parts(news, arm, together=self._quota is not None)

    async def _arm_some(
        self, traceparent: str | None, planning: asyncio.Lock, news: Sequence[Wish], turn: Turn
    ) -> Results:
        store = await self._open()
        async with planning:  # the parts of a batch share the turns of one
            now_ms = store.clock.now_ms()
            planned = [
                new if isinstance(new, Exception) else tried(plan, new, now_ms, traceparent, self._by, self._durability)
                async for new in cooperatively(news)
            ]
        prefixes = {p.prefix for p in planned if isinstance(p, Arming)}
        refusals = self._declared.refusals if self._ledger is None else partial(self._ledger.refusals, self._declared)
        refused = await refusals(prefixes, self._visible)

        def asked(p: Arming) -> tuple[Durability, int]:
            level = p.durability or "fast"
            return level, store.shard_of(p.prefix, p.id) if level in WAITS else 0

        levels = {asked(p) for p in planned if isinstance(p, Arming)}
        lacks = {level: error for level in levels if (error := await self._lacks(*level))}
        if refused or lacks:
            planned = [
                refused.get(p.prefix) or lacks.get(asked(p)) or p if isinstance(p, Arming) else p for p in planned
            ]
        armings = [arming for arming in planned if isinstance(arming, Arming)]
        answers = iter(await self._group_commit.arm_each(armings, self._quota, turn))

        def result(p: Arming) -> Armed | Reason:
            answer = next(answers)
            return tried(armed, answer, p, self._quota) if answer.refused is None else answer.refused

        return [result(p) if isinstance(p, Arming) else p for p in planned]

    async def get(self, prefix: str, id: str) -> Timer:
        store = await self._open()
        prefix, id = check_prefix(prefix), check_id(id)
        timer = await store.get_one(prefix, id)
        if timer is None and self._ledger is not None:
            await self._ledger.give_back((prefix, id))
            timer = await store.get_one(prefix, id)
        if timer is None:
            raise refusal("missing", prefix, id, None)
        return timer

    async def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        timer = await self._cancel(prefix, id, version, purge=purge)
        if purge:
            try:
                await purge_calls(await self._open(), timer, await self._declared.calls())
            except Unavailable as error:
                error.nothing_done = False
                raise
        return timer

    async def _cancel(self, prefix: str, id: str, version: int | None, *, purge: bool) -> Timer:
        check_version(version)
        store, prefix, id, life = await self._changing(prefix, id)
        answer = await store.cancel(
            prefix,
            id,
            edit_lock_ms=self._edit_lock_ms,
            version=version,
            purge=purge,
            keep=self._keeps_cancelled,
            cause=encode_act("removed" if purge else "cancelled", self._by),
            life=life,
        )
        act, code = ("purge", "purged") if purge else ("cancel", "cancelled")
        removed = purge or not self._keeps_cancelled
        return await self._done(act, answer, prefix, id, life, code=code, removed=removed)

    async def change(
        self,
        prefix: str,
        id: str,
        change: TimerChange | None = None,
        *,
        version: int | None = None,
        **fields: Unpack[ChangeFields],
    ) -> Timer:
        """Change a scheduled timer. The keywords are the fields of a `PATCH`, which may also be given as a TimerChange.
        Raises as `cancel`."""
        if change is not None and fields:
            raise TypeError("a TimerChange or its fields, not both")
        change = change or TimerChange.parse(fields)
        if not change.model_fields_set:
            raise InvalidInput.of("", {}, f"at least one of {', '.join(TimerChange.model_fields)}")
        check_callers_prefix(prefix)
        check_version(version)
        store, prefix, id, life = await self._changing(prefix, id)
        while True:  # until nobody else has changed it between the read and the write
            current, due_ms = await self.get(prefix, id), own_due_ms(change, store.clock.now_ms())
            answer = await store.reschedule(
                prefix,
                id,
                due="" if due_ms is None else f"@{due_ms}",
                spec=change.changed_spec(spec_of(current)),
                progress=changed_progress(current, change, due_ms),
                edit_lock_ms=self._edit_lock_ms,
                version=current.version if version is None else version,
                cause=encode_act("rescheduled" if due_ms is not None else "changed", self._by),
                life=life,
            )
            if answer.code != "version" or version is not None:
                return await self._done("change", answer, prefix, id, life)

    async def reschedule(
        self,
        prefix: str,
        id: str,
        *,
        delay: Delay | None = None,
        due_at: Time | None = None,
        version: int | None = None,
    ) -> Timer:
        """Move the due time: `delay=` or `due_at=`. Raises as `cancel`."""
        due = {name: value for name, value in (("delay", delay), ("due_at", due_at)) if value is not None}
        if not due:
            raise InvalidInput.of("delay", None, "exactly one of delay and due_at")
        return await self.change(prefix, id, TimerChange.parse(due), version=version)

    async def fire(self, prefix: str, id: str) -> Timer:
        """Make a scheduled timer due now, even inside the edit lock. Raises NotFound, Running, NotScheduled."""
        store, prefix, id, life = await self._changing(prefix, id)
        cause = encode_act("fired", self._by)
        answer = await store.reschedule(prefix, id, due="+0", cause=cause, life=life)
        return await self._done("fire", answer, prefix, id, life)

    async def retry(self, prefix: str, id: str) -> Timer:
        """Arm a failed, unhandled or cancelled timer again, now. Raises NotFound, Running, NotScheduled."""
        return await self._retry(prefix, id, None)

    async def _retry(self, prefix: str, id: str, version: int | None) -> Timer:
        _, prefix, id, life = await self._changing(prefix, id)
        cause = encode_act("retried", self._by)
        answer = await self._quotas.rearm(prefix, id, self._quota, cause=cause, version=version, life=life)
        return await self._done("retry", answer, prefix, id, life)

    async def list(self, *, limit: int = LIST_LIMIT, cursor: str | None = None, **wanted: Unpack[FilterFields]) -> Page:
        """A page of timers: by status (running first), then prefix, then due time or end time. `cursor` is the
        `next_cursor` of the page before. Every page costs the same however many timers there are, and pages neither
        skip nor repeat timers that do not move."""
        return await self.page(PageRequest.parse({**wanted, "limit": limit, "cursor": cursor}))

    async def page(self, asked: PageRequest) -> Page:
        """As `list`, for a checked request."""
        return await read_page(await self._open(), asked, limit=asked.limit, cursor=asked.cursor)

    async def iterate(self, **wanted: Unpack[FilterFields]) -> AsyncIterator[Timer]:
        """All timers that match, read page by page."""
        async for timers in read_pages(await self._open(), Filter.parse(wanted)):
            for timer in timers:
                yield timer

    async def act(
        self,
        action: Action | BulkAction,
        filter: Filter | FilterFields | None = None,  # noqa: A002
        *,
        dry_run: bool = False,
        cursor: str | None = None,
        stop: Stop = lambda _: False,
        delay: Delay | None = None,
        due_at: Time | None = None,
        changes: TimerChange | ChangeFields | None = None,
    ) -> Counts:
        """`cancel`, `retry`, `reschedule` (with `delay=` or `due_at=`), `change` (with `changes=`) or `purge` every
        timer that matches; with `dry_run` only count them. Memory is bounded and the pace limited; a timer that refuses
        is counted and stops nothing, and those that change meanwhile are left alone. `stop` is asked after each page;
        the same call with the `next_cursor` then continues. A checked BulkAction says all of this by itself."""
        if not isinstance(action, BulkAction):
            due = {"delay": delay, "due_at": due_at}
            given = {"action": action, "filter": filter, "dry_run": dry_run, "cursor": cursor, "changes": changes}
            action = BulkAction.parse({**given, **due})
        store = await self._open()
        since_ms = await store.now_ms() if action.cursor is None else begun(action.cursor)[0]
        change = action.change_from(since_ms)
        one = None if action.dry_run else await self._act_of(action.action, change)
        return await carry_out(store, action, since_ms, change=change, act=one, stop=stop)

    async def _act_of(self, action: str, change: TimerChange | None) -> Act:
        store = await self._open()
        # Also the calls of hooks that nobody asks for any more.
        calls = (
            [prefix for prefix in await self.counts(own=True) if prefix.startswith(CALLS)] if action == "purge" else []
        )

        async def act(timer: Timer) -> None:
            prefix, id, version = timer.prefix, timer.id, timer.version
            if action == "retry":
                await self._retry(prefix, id, version)
            elif change is not None:
                await self.change(prefix, id, change, version=version)
            else:
                ended = await self._cancel(prefix, id, version, purge=action == "purge")
                if running := await purge_calls(store, ended, calls):
                    raise Running(
                        f"timer {timer.key} is removed, but not the call {running} about it, which is running"
                    )

        return act

    async def stats(self, prefix: str | None = None, *, visible: Visible | None = None) -> Stats:
        """Counts, lateness, what is overdue, how notifications arrive; `prefix` as in a filter. `visible` leaves out
        timers of some prefixes."""
        return await read_stats(await self._open(), Filter.parse({"prefix": prefix}).seen_by(visible))

    async def counts(self, *, own: bool = False) -> Mapping[str, Mapping[Status, int]]:
        """How many timers of each prefix are in each status, zeros left out; with `own` also the service's own."""
        counts = await queries.counts(await self._open())
        return counts if own else {prefix: counted for prefix, counted in counts.items() if not is_own(prefix)}

    async def retrying(self, *, own: bool = False) -> Sequence[tuple[str, int, int]]:
        """The prefixes with most retrying timers, then those of which one has failed longest: how many, and for how
        many ms the first of them has failed; with `own` also the service's own."""
        return await read_retrying(await self._open(), own=own)

    async def fleet(self) -> Fleet:
        """Who is alive, what was declared, and what is due."""
        return await read_fleet(await self._open())

    async def prefixes(self, prefix: str | None = None) -> Sequence[PrefixView]:
        """The prefixes that have timers or a processor, or are paused; `prefix` as in a filter."""
        covers = Filter.parse({"prefix": prefix}).covering()
        return [view for view in await read_prefixes(await self._open()) if covers(view.prefix)]

    async def owner(self, prefix: str) -> str | None:
        """The processor that owns timers of the prefix, on a live pod or not; None if none was ever declared."""
        await self._open()
        return await self._declared.owner(prefix)

    async def forget(self, prefix: str) -> None:
        """Take back the declaration of a prefix: its timers then belong to the processor of a shorter prefix, if there
        is one. Raises NotFound, and Refused while a live pod declares it."""
        store = await self._open()
        await forget_prefix(store, check_prefix(prefix))
        self._declared = Declared(store)  # not as of a second ago

    async def pods(self) -> Sequence[Member]:
        """The pods that are alive."""
        return (await self.fleet()).roster.by_name

    @property
    def losses(self) -> Sequence[Loss]:
        """Losses of data that nobody has acknowledged, as a pod last saw them."""
        return () if self._store is None else tuple(self._store.identity.losses.values())

    async def acknowledge_losses(self) -> Sequence[Loss]:
        """Acknowledge all losses of data, which ends the warnings. Returns the losses."""
        return await (await self._open()).identity.acknowledge()

    async def pause(self, prefix: str) -> bool:
        """Start no more timers of a prefix; runs in progress continue. True if that changed anything."""
        return await self._pause("pause", prefix)

    async def resume(self, prefix: str) -> bool:
        """Start timers of a prefix again. True if that changed anything."""
        return await self._pause("resume", prefix)

    async def _pause(self, act: str, prefix: str) -> bool:
        prefix = check_prefix(prefix)
        changed = await (await self._open()).pause(prefix, paused=act == "pause")
        if self._by is not None:
            _log.info("a caller changed a prefix", act=act, prefix=prefix, by=self._by)
        return changed

    async def events(self, prefix: str | None = None) -> AsyncIterator[Event]:
        """The timers' changes from now on, and word of changes that were missed; `prefix` as in a filter. Ends when the
        client is closed."""
        covers = Filter.parse({"prefix": prefix}).covering()
        wants = None if prefix is None else lambda change: covers(change.prefix)
        async for event in (await feed_of(self)).events(wants):
            yield event

    @property
    def events_dropped(self) -> int:
        """Changes that this process's listeners took too slowly and lost."""
        return 0 if self._store is None else self._feed.dropped

    async def _open(self) -> Store:
        """The store, which knows the db and its clock. Until a timer was armed, anybody may still give the db another
        number of shards, so it is read again."""
        if self._loop is not asyncio.get_running_loop():
            self._check_loop()
        if self._connections is None:
            settings = load_worker_settings()
            url = await reachable_url(settings.redis_url, settings.data_dir)
            if self._connections is None:  # no call at the same time was first
                self._connections, self._edit_lock_ms = connect(url), settings.edit_lock_ms
                self._database, self._durability = open_ledger(settings.ledger), settings.durability or "ledger"
        store = self._store or self._use(Store(self._connections))
        if store.identity.moving is not None:
            await self._check_place(store)
        if not store.identity.armed:
            try:
                await store.identity.refresh()
            except Unavailable:
                if self._ledger is None or not store.identity.epoch:  # the ledger takes new timers meanwhile
                    raise
        if self._database is not None and not store.identity.epoch:
            await recall_shards(store, self._database)
        return store

    def _check_loop(self) -> None:
        """Raise RuntimeError on another event loop: what is sent from there is done, but its answer never arrives."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop and not self._any_loop:
            raise RuntimeError(
                "this TimerClient is open on another event loop; close it before that loop ends, and make one for each "
                "loop, or use BlockingTimerClient where there is none"
            )

    @staticmethod
    async def _check_place(store: Store) -> None:
        """Raise Moving if the service has left: what this db has is of the past. Until then it can be read."""
        await store.identity.refresh()
        if (moving := store.identity.moving) is not None and moving.is_over:
            raise moving.error


def check_options(edit_lock_ms: object, durability: object) -> None:
    """Raise InvalidInput for options that no client can have. Nothing later would refuse a misspelt durability."""
    if durability not in LEVELS:
        raise InvalidInput.of("durability", durability, listed({}))
    if not isinstance(edit_lock_ms, int) or edit_lock_ms < 0:
        raise InvalidInput.of("edit_lock_ms", edit_lock_ms, "a number of milliseconds, zero or more")


def wished(news: Iterable[Wish]) -> Sequence[Wish]:
    """What a batch is to arm. Raises InvalidInput for too much, of which it takes no more than one too many."""
    given = news if isinstance(news, Sequence) else list(islice(news, BATCH_LIMIT + 1))
    if len(given) > BATCH_LIMIT:
        number = len(given) if given is news else f"more than {BATCH_LIMIT}"
        raise InvalidInput.of("timers", f"{number} timers", f"at most {BATCH_LIMIT}")
    return given


def client_over(
    store: Store, *, edit_lock_ms: int = 0, ledger: str | None = None, durability: Durability = "ledger"
) -> TimerClient:
    """A client over a store that is already open; closing the client closes the store's connections."""
    client = TimerClient(edit_lock_ms=edit_lock_ms, ledger=ledger, durability=durability)
    client._connections, client._any_loop = store.connections, True
    client._use(store)
    return client


def client_of(store: Store, settings: Settings) -> TimerClient:
    """As `client_over`, as the settings want it: with a retention of 0 it keeps no record of cancelled timers."""
    wanted = settings.durability or "ledger"
    client = client_over(store, edit_lock_ms=settings.edit_lock_ms, ledger=settings.ledger, durability=wanted)
    client._keeps_cancelled = settings.retention_ms > 0
    return client


async def feed_of(client: TimerClient) -> Feed:
    """The one subscription behind all `events` of a client."""
    await client._open()
    return client._feed


async def aside(client: TimerClient) -> Aside:
    """What waits beside the timers of a client's db."""
    return await queries.aside(await client._open())


async def held_ms(client: TimerClient, fleet: Fleet) -> Mapping[tuple[str, HeldBy], int]:
    """As `held_ms` of the fleet, with the paused prefixes of a client's db."""
    blocked = any(due.kind == "blocked" for due in fleet.due)
    return fleet.held_ms(await queries.paused(await client._open()) if blocked else ())
