"""Owns what the ledger learns from Redis: the notes of what has changed in a shard, how far a shard and the ledger have
come to agree, what a comparison of the two reads, and the marks of rows of the ledger's inbox.

The functions raise Unavailable.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from timers.errors import Unavailable
from timers.store import keys
from timers.store.scripts import batched, grouped, reachable, read
from timers.store.store import FOUNDING_TRIES, KEEPS_CHANGING, Identity, Store

LEDGER: Final = "@ledger"
"""The field of a shard's `hooks` that makes scripts note changes. Its value is a Stage as text."""

FIRST_SHARD: Final = 0
"""Whoever leads it keeps what the ledger has besides timers. Its stage says whether that was given back."""

BUCKETS: Final = 256
PAGE: Final = 500
"""Notes in one call: a millisecond of the server's time."""

SAMPLED: Final = 100
"""Notes of a shard whose age is looked at."""

REMEMBERED: Final = 4
"""About how many notes of a shard are remembered, to see whether anybody takes them away."""


NOWHERE: Final = "-"
"""The place of a stage at its beginning."""


class Stage(NamedTuple):
    """How far a shard and the ledger have come to agree: first `restore` gives the ledger's timers back to the shard,
    then `copy` takes the shard's own, each from a place on; then the shard is `whole`, and its notes keep it so. After
    a `rebuild`, the restore of a shard that had none, it is whole at once. On another server it has to `check` what has
    changed since a time (epoch ms; 0: all, and to be copied then): that may have an older copy. `life` names the time
    until data is lost again: the server's process, and what the shard carries."""

    what: str
    place: str = ""
    life: str = ""

    @property
    def is_whole(self) -> bool:
        return self.what == "whole"

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of what the shard lacks: it may lack more than timers."""
        return not self.place or (self.what == CHECK and not self.agreed_ms)

    @property
    def is_older(self) -> bool:
        """Whether the ledger knew all that the shard had, on another server: this one may have an older copy."""
        return self.what == CHECK and self.agreed_ms > 0

    @property
    def agreed_ms(self) -> int:
        """When a whole shard, or one to check, last agreed with the ledger."""
        return int(self.place or 0)

    @property
    def server(self) -> str:
        """The server's process."""
        return self.life.partition("/")[0]

    @property
    def carried(self) -> str:
        """What the shard carries; empty after a loss."""
        return self.life.partition("/")[2].replace(":", " ")

    @property
    def name(self) -> str:
        """The stage without the life in which it was reached."""
        return f"{self.what} {self.place or NOWHERE}"


RESTORE: Final = Stage("restore")
REBUILD: Final = "rebuild"
COPY: Final = Stage("copy", "0")
CHECK: Final = "check"
WHOLE: Final = Stage("whole")


class Note(NamedTuple):
    """A timer that the ledger may not have as it is: what was noted (`<creation> <version>`, and ` gone` if it was
    removed), and its record unless it has none."""

    member: str
    noted: bytes
    record: bytes | None


class Notes(NamedTuple):
    """Some notes of a shard, where to go on (0: from the start), how many it has in all, its stage, and how many were
    left out because their runs have just begun, and because the records before them were large enough for one
    call."""

    stage: Stage
    notes: Sequence[Note]
    cursor: int
    left: int
    fresh: int
    large: int


async def notes(store: Store, shard: int, cursor: int, done: Sequence[Note] = (), agreed_ms: int = 0) -> Notes:
    """Take notes away that are `done` and still the same, and read further ones. From the first call on, the shard's
    scripts note all that they change. The first shard remembers the latest `agreed_ms`."""
    *before, last = batched(done, PAGE) if done else [()]
    for part in before:
        await _follow(store, shard, (cursor, 0), part, 0)
    said_ms = agreed_ms if shard == FIRST_SHARD else 0
    stage, life, at, found, left, fresh, large = await _follow(store, shard, (cursor, PAGE), last, said_ms)
    read = [Note(member.decode(errors="replace"), noted, record) for member, noted, record in grouped(found, 3)]
    return Notes(_stage(stage, life), read, int(at), int(left), int(fresh), int(large))


async def _follow(store: Store, shard: int, start: tuple[int, int], done: Sequence[Note], ms: int) -> Sequence[Any]:
    members, noted = [note.member for note in done], [note.noted for note in done]
    return await store.run("follow", shard, [*start, len(done), *members, *noted, ms])


async def stages(store: Store, shards: Sequence[int]) -> dict[int, Stage]:
    """How far each of these shards has come; one that was lost and that no pod has looked at is at its beginning."""
    found = await store.run_all("stage", [(keys.root(shard), []) for shard in shards], store.connections.scripts)
    return {
        shard: _stage(said or RESTORE.name.encode(), life) for shard, (_, said, life) in zip(shards, found, strict=True)
    }


async def server_of(store: Store) -> tuple[str, int | None]:
    """The identity of the server's process, which a restart and a failover change; and when pods last followed, as far
    as Redis was told. 0: never; None if that cannot be read, such as on a cluster's node that is away."""
    asked: Any = store.connections.commands.pipeline(transaction=False)
    asked.info("server").get(f"{keys.root(FIRST_SHARD)}agreed")
    with reachable():
        about, said = await asked.execute(raise_on_error=False)
        if isinstance(about, Exception):
            raise about
    is_known = said is None or (isinstance(said, bytes) and keys.is_number(said))
    return str(about["run_id"]), int(said or 0) if is_known else None


async def is_still(store: Store, epoch: str) -> bool:
    """Whether the db still has this epoch."""
    ((there,),) = [await read(store.connections.commands, lambda asked: asked.hget(keys.META, "epoch"), None)]
    return there is not None and keys.text(there) == epoch


async def left(store: Store, shards: Sequence[int]) -> dict[int, int]:
    """How many changes of each of these shards the ledger may not have."""
    answers = await store.of_shards(lambda asked, root: asked.hlen(f"{root}changed"), 0, shards=shards)
    return {shard: length for shard, (length,) in zip(shards, answers, strict=True)}


async def some_notes(store: Store, shards: Sequence[int]) -> dict[int, dict[bytes, bytes]]:
    """A few notes of each of these shards, by member. Changes nothing."""
    answers = await store.of_shards(
        lambda asked, root: asked.hscan(f"{root}changed", count=REMEMBERED), (0, {}), shards=shards
    )
    return {shard: found for shard, ((_, found),) in zip(shards, answers, strict=True)}


async def behind(store: Store) -> tuple[int, int]:
    """How many changes of all shards the ledger may not have, and for how many ms the oldest of some has waited. Unlike
    `notes`, changes nothing."""
    answers = await store.of_shards(
        lambda asked, root: asked.hlen(f"{root}changed").hscan(f"{root}changed", count=SAMPLED), 0, (0, {})
    )
    members = [member for _, (_, some) in answers for member in islice(some, SAMPLED)]
    timers = await store.get([keys.identity_of(keys.text(member)) for member in members])
    changed_ms = [timer.history[0].at_ms for timer in timers if timer is not None and timer.history]
    now_ms = round(store.clock.now_ms())
    return sum(length for length, _ in answers), max(0, now_ms - min(changed_ms, default=now_ms))


async def founded(store: Store, shard: int) -> Stage:
    """The stage of a shard that carries the db's epoch, which another loss takes away. One in which no timer was armed
    gets it."""
    if not store.identity.epoch:
        await store.identity.make()
    for _ in range(FOUNDING_TRIES):
        stage = (await stages(store, [shard]))[shard]
        if stage.carried == store.identity.stamp:
            return stage
        await store.identity.found([shard])
    raise Unavailable(KEEPS_CHANGING)


async def advance(store: Store, shard: int, before: Stage, reached: Stage) -> bool:
    """Say how far a shard has come, for whoever goes on after this pod. False if the shard has lost data since `before`
    was read, or another pod was faster."""
    return bool((await store.run("agree", shard, [before.life, before.name, reached.name]))[0])


async def detach(store: Store) -> None:
    """Let scripts note nothing any more, in any shard, and forget what they have noted."""
    with reachable():
        for root in map(keys.root, range(store.shards)):
            await store.connections.commands.hdel(f"{root}hooks", LEDGER)
            await store.connections.commands.delete(f"{root}changed")


def _stage(said: bytes, life: bytes) -> Stage:
    what, _, place = keys.text(said).partition(" ")
    return Stage(what, "" if place == NOWHERE else place, keys.text(life))


Age = tuple[int, int]
"""Creation (epoch ms) and version: what tells the newer of two states of a timer."""


class Totals(NamedTuple):
    """How many records a shard has, how many its counts say, how many of those are scheduled or run, and of how many
    timers a change is noted for the ledger."""

    records: int
    counted: int
    live: int
    noted: int


async def ages(
    store: Store, shard: int, identities: Collection[Identity], *, noted: bool = False
) -> dict[Identity, Age | None]:
    """How new these timers are; None for one that is not there. Leaves out those whose record cannot be read and,
    unless asked for, those of which the ledger has yet to learn a change."""
    found: dict[Identity, Age | None] = {}
    for some in batched(list(identities), PAGE):
        for identity, said in zip(some, await store.run("ages", shard, list(map(":".join, some))), strict=True):
            age, waits, _ = said.partition(b" noted")
            if age != b"-" and (noted or not waits):
                created, _, version = age.partition(b" ")
                found[identity] = (int(created), int(version)) if age else None
    return found


async def totals(store: Store, shard: int) -> Totals:
    """How many timers a shard has. Others may change some meanwhile."""
    ((counts, noted, *records),) = await store.of_shards(
        lambda asked, root: [
            asked.hgetall(f"{root}counts"),
            asked.hlen(f"{root}changed"),
            *(asked.hlen(f"{root}rec:{bucket:02x}") for bucket in range(BUCKETS)),
        ],
        {},
        *[0] * (BUCKETS + 1),
        shards=[shard],
    )
    by_status = [
        (field[:1], int(number)) for field, number in counts.items() if keys.is_number(number.removeprefix(b"-"))
    ]
    live = sum(number for status, number in by_status if status in (b"s", b"r"))
    return Totals(sum(records), sum(number for _, number in by_status), live, noted)


async def note(store: Store, shard: int, changed: Mapping[Identity, Age]) -> None:
    """Have these timers copied to the ledger, except those of which a change is noted already."""
    with reachable():
        async with store.connections.commands.pipeline(transaction=False) as asked:
            for identity, (created_ms, version) in changed.items():
                asked.hsetnx(f"{keys.root(shard)}changed", ":".join(identity), f"{created_ms} {version}")
            await asked.execute()


Marks = Mapping[str, int]
"""Rows of the inbox whose timers were armed, each as `<seq>.<at>`, and when, in epoch ms. `arm` sets a mark in the step
that arms the timer."""

INBOX: Final = "inbox"
"""What the history says before a row: `inbox <seq>.<at>`."""


async def read_marks(store: Store) -> AsyncIterator[tuple[int, Marks]]:
    """The marks: some of a shard at a time, and which shard. A minute of a busy inbox has many."""
    cursors = dict.fromkeys(range(store.shards), 0)

    def ask(asked: Any) -> None:
        for shard, cursor in cursors.items():
            asked.hscan(f"{keys.root(shard)}inbox", cursor, count=PAGE)

    while cursors:
        answers = await read(store.connections.commands, ask, (0, {}))
        found = dict(zip(cursors, answers, strict=True))
        cursors = {shard: cursor for shard, (cursor, _) in found.items() if cursor}
        for shard, (_, marks) in found.items():
            if marks:
                yield shard, {keys.text(row): int(at) for row, at in marks.items() if keys.is_number(at)}


async def drop_marks(store: Store, shard: int, rows: list[str]) -> None:
    """Forget rows that are deleted for good."""
    with reachable():
        await store.connections.commands.hdel(f"{keys.root(shard)}inbox", *rows)
