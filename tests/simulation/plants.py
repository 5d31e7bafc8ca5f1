"""Owns planted faults: small mistakes in the scripts or in the engine, which the worlds must find."""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from redis.exceptions import ConnectionError

from tests.simulation.network import ScriptWire
from tests.simulation.server import service_scripts
from timers.bare import watch
from timers.client import TimerClient, copies
from timers.core.decide import decide
from timers.core.model import Status
from timers.engine import runner
from timers.engine.claimer import Claimer
from timers.engine.leases import Leases
from timers.engine.runs import Runs
from timers.engine.sweeper import ShardSweep, Sweeper
from timers.errors import TimersError
from timers.processor import Registry
from timers.store import scripts


@dataclass(frozen=True, slots=True)
class Plant:
    """A mistake: what stands in the scripts, and what stands there instead; or what replaces something of the engine,
    by its owner and name. The world of the seed `seen_by` notices it at once, unless the engine has changed since; with
    a `ledger` if it shows only there."""

    texts: Mapping[str, str] = field(default_factory=dict)
    seen_by: int = 0
    ledger: bool = False
    engine: tuple[tuple[Any, str, Any], ...] = ()

    def scripts(self) -> dict[str, str]:
        """The scripts with the mistake, by name."""
        wrong: dict[str, str] = {}
        for right, mistaken in self.texts.items():
            found = {
                name: text
                for name in service_scripts().values()
                if right in (text := wrong.get(name) or scripts.source(name))
            }
            if not found:
                raise LookupError(f"no script has: {right}")
            wrong |= {name: text.replace(right, mistaken) for name, text in found.items()}
        return wrong

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The engine with the mistake."""
        with ExitStack() as patches:
            for owner, name, mistaken in self.engine:
                patches.enter_context(patch.object(owner, name, mistaken))
            yield


_right_cancel: Final = TimerClient.cancel
_right_execute: Final = ScriptWire.execute_command


async def _unheard(asked: Awaitable[object]) -> None:
    with suppress(TimersError):
        await asked


async def _cancel_later(self: TimerClient, prefix: str, id: str, **given: Any) -> Any:
    timer = await self.get(prefix, id)
    if timer.status is not Status.SCHEDULED or given.get("purge"):
        return await _right_cancel(self, prefix, id, **given)
    asyncio.get_running_loop().create_task(_unheard(_right_cancel(self, prefix, id, **given)))
    return timer._replace(status=Status.CANCELLED, version=timer.version + 1)


def _burn_two(*given: Any) -> Any:
    transition = decide(*given)
    return transition._replace(failures=transition.failures + 1) if transition.cause[0] == "retry" else transition


async def _find_all(self: ShardSweep, touched: Any) -> bool:
    if not touched.lost:
        return False
    orphans, _ = await self._all.pod.store.orphans(self._shard, 0)
    for orphan in orphans:
        self._all.intake.mark_orphan(self._shard, orphan)
    return bool(orphans)


def _any_room(self: Claimer, prefix: str) -> int:
    return max(self._runner.room_of(prefix) - self._asked_of[prefix], 0)


async def _ask_twice(self: ScriptWire, *command: Any) -> Any:
    try:
        return await _right_execute(self, *command)
    except ConnectionError:
        return await _right_execute(self, *command)


async def _at_once(*_: Any) -> None:
    pass


async def _none_found(*_: Any) -> bool:
    return False


async def _arm_none(*_: Any) -> Sequence[tuple[str, str, int]]:
    return ()


def _unlimited(*_: Any) -> bool:
    return False


def _forget(*_: Any, **__: Any) -> None:
    """Mark nothing."""


NO_PLANT: Final = Plant()

PLANTS: Final[Mapping[str, Plant]] = {
    "settle without the token check": Plant({"if held.token ~= token then return 'fenced' end": ""}, seen_by=20),
    "a second settle counts": Plant({"if held.status ~= 'r' then return 'already' end": ""}, seen_by=31),
    "start after cancel": Plant(
        {
            "if r.status ~= 's' or r.waits then": "if (r.status ~= 's' and r.status ~= 'x') or r.waits then",
            "  leave(prefix, id, r)\n  raw = end_as('x'": "  raw = end_as('x'",
        },
        seen_by=1,
    ),
    "claim 1 ms early": Plant(
        {
            "if r.due > now then": "if r.due > now + 1 then",
            "'-inf', '(' .. text(now + 1), 'LIMIT', '0'": "'-inf', '(' .. text(now + 2), 'LIMIT', '0'",
        },
        seen_by=2,
    ),
    "lease not extended": Plant(engine=((Leases, "_extend", _at_once),), seen_by=1),
    "lease taken over while it lasts": Plant({"if lease_of(member) then return end": ""}, seen_by=33),
    "attempt not counted": Plant({"'r', token, r.attempt + 1": "'r', token, r.attempt"}),
    "occurrence lost between run and re-arm": Plant(
        {"    schedule(prefix, id, r.due)\n    if r.failures ~= 0": "    if r.failures ~= 0"}, seen_by=1
    ),
    "cancel acknowledged before written": Plant(engine=((TimerClient, "cancel", _cancel_later),), seen_by=1),
    "token reused": Plant(
        {"local top = math.max(newest_token(), now_us) + n": "local top = math.max(math.floor(now / 1000), 1) + n"},
        seen_by=3,
    ),
    "a retry burns two tries": Plant(engine=((runner, "decide", _burn_two),), seen_by=3),
    "rescue by a wrong processor": Plant(
        engine=((ShardSweep, "_find_orphans", _find_all), (Claimer, "_room_of", _any_room)), seen_by=90
    ),
    "create repeated blindly": Plant(engine=((ScriptWire, "execute_command", _ask_twice),), seen_by=37),
    "limit not held": Plant(engine=((Registry, "limits_fleet", _unlimited),), seen_by=8),
    "bare key fired twice": Plant(
        {"  if not is_news(member, since, number, r) then return 'known' end": ""}, seen_by=7
    ),
    "life of a bare key overlooked": Plant(
        {
            "  if since ~= '' and is_news(member, since, number, r) then answered(member, since, number, now_text)\n"
            "  else answered_unheard(member) end": "  answered(member, '9999999999999@', '0', '9999999999999')"
        },
        seen_by=7,
    ),
    "value of another key": Plant(engine=((watch, "UNREAD", None),), seen_by=26),
    "starts without looking at its lease": Plant(engine=((Runs, "wait_for_lease", _at_once),), seen_by=56),
    "the sweep trusts events": Plant(engine=((ShardSweep, "_mark", _forget),), seen_by=42),
    "orphans are never found": Plant(engine=((ShardSweep, "_find_orphans", _none_found),), seen_by=18),
    "what waits to be armed is armed by pods only": Plant(
        engine=((copies, "arm_waiting", _arm_none),), seen_by=17, ledger=True
    ),
    "changes are not noted": Plant(
        {"  if followed then follow(member, r) end\n    if #hooks": "  if #hooks"}, ledger=True
    ),
    "a note is taken away though it is another": Plant(
        {"if noted == ARGV[4 + done + i] then": "if noted then"}, seen_by=3, ledger=True
    ),
    "a removal is forgotten": Plant(
        {"return created and tonumber(created) >= r.created": "return false"}, seen_by=51, ledger=True
    ),
    "a row of the inbox is carried out again": Plant(
        {"  if row and call('HGET', root .. 'inbox', row) then return raw and 'kept' or 'done', raw or '' end": ""},
        seen_by=51,
        ledger=True,
    ),
    "a gap is not swept": Plant(engine=((Sweeper, "sweep_everything", _forget),), seen_by=2032),
}
"""By name."""
