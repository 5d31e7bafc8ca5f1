"""Owns the commands for operators: init, prefixes, pause, resume, pods, doctor, replay; config; and the API keys'."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr

from timers.access import KEY_ID, RIGHTS, ApiKey, make_key, read_entries
from timers.cli import COMMANDS, URL_NAME
from timers.cli.shared import ExactPrefix, Of, OnlyOf, Output, cell, note, progress, run, show, table
from timers.client import TimerClient
from timers.client.actions import Replayed, arm_again, preview
from timers.client.opening import open_ledger
from timers.core.policies import Rate
from timers.doctor.checks import Check
from timers.doctor.examining import examine, unreachable
from timers.embedded import reachable_url
from timers.errors import ConfigurationError, InvalidInput, Unavailable
from timers.processor import Registry, find
from timers.setting_values import MAX_SHARDS, parts
from timers.settings import SETTING_NAMES, Settings, load_settings, load_worker_settings, setting_origins
from timers.store.callers import REVOKED, Callers
from timers.store.filters import Filter
from timers.store.servers import connect
from timers.store.store import Store

app = typer.Typer()
keys = typer.Typer(name="keys", help=COMMANDS["operating"]["keys"], no_args_is_help=True)
prefixes = typer.Typer(name="prefixes", help=COMMANDS["operating"]["prefixes"])
app.add_typer(keys)
app.add_typer(prefixes)

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@app.command()
def init(
    shards: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MAX_SHARDS, help="Number of shards; default TIMERS_SHARDS.")
    ] = None,
    output: Output = "table",
) -> None:
    """Claim an empty db for the service. You can change the number of shards until the first timer is armed, or a
    prefix paused."""

    async def make(client: TimerClient, store: Store) -> Mapping[str, Any]:
        identity = store.identity
        await identity.make()
        return {"epoch": identity.epoch, "shards": identity.shards}

    try:
        show(run(make, TIMERS_SHARDS=None if shards is None else str(shards)), output)
    except ConfigurationError as error:
        if shards is None:
            raise
        raise ConfigurationError(str(error).replace("TIMERS_SHARDS", "--shards")) from error


@prefixes.callback(invoke_without_command=True)
def list_prefixes(context: typer.Context, of: Of = None, output: Output = "table") -> None:
    """List the prefixes that have timers, were declared, or are paused, and who runs them."""
    if context.invoked_subcommand is not None:
        return
    found = [view.to_json() for view in run(lambda client, _: client.prefixes(of))]
    show(found, output, [_prefix_row(view) for view in found])


def _prefix_row(view: Mapping[str, Any]) -> Mapping[str, Any]:
    """A prefix as one row: the number of its pods, and a column for each count."""
    rest = {name: value for name, value in view.items() if name != "counts"}
    return {**rest, "pods": len(view["pods"]), **view["counts"]}


@prefixes.command()
def forget(prefix: ExactPrefix) -> None:
    """Forget the declaration of a prefix, once no live pod has its processor."""
    run(lambda client, _: client.forget(prefix))
    note(f"{prefix!r} is no longer declared")


@app.command()
def pause(prefix: ExactPrefix, output: Output = "table") -> None:
    """Start no more timers of a prefix. Runs in progress continue."""
    run(lambda client, _: client.pause(prefix))
    show({"prefix": prefix, "paused": True}, output)


@app.command()
def resume(prefix: ExactPrefix, output: Output = "table") -> None:
    """Start the timers of a paused prefix again."""
    run(lambda client, _: client.resume(prefix))
    show({"prefix": prefix, "paused": False}, output)


@app.command()
def pods(output: Output = "table") -> None:
    """List the live pods."""
    show([pod.to_json() for pod in run(lambda client, _: client.pods())], output)


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Switch on missing notification flags; repair indexes and counts.")
    ] = False,
    acknowledge: Annotated[bool, typer.Option("--acknowledge", help="End the warnings about lost data.")] = False,
    output: Output = "table",
) -> None:
    """Check the server, the data and the pods, and say what to do. Exits with 1 if a check fails."""
    checks = asyncio.run(_examined(fix=fix, acknowledge=acknowledge))
    show([check.to_json() for check in checks], output, list(_lines(checks)))
    if any(check.level == "fail" for check in checks):
        raise typer.Exit(1)


async def _examined(*, fix: bool, acknowledge: bool) -> Sequence[Check]:
    """Run the checks. This also works on a db that no other command would open."""
    settings = load_worker_settings()
    ledger = open_ledger(settings.ledger)
    connections = connect(await reachable_url(settings.redis_url, settings.data_dir))
    store = Store(connections, shards=settings.shards)
    try:
        return await examine(store, fix=fix, acknowledge=acknowledge, progress=progress, ledger=ledger)
    except Unavailable as error:
        return await unreachable(store, error)
    finally:
        await connections.close()
        if ledger is not None:
            await ledger.close()


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    """A line for each check. Below a check that is not fine, what it means and how to repair it. Colours come only to a
    terminal."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        level = typer.style(f"{check.level:<4}", fg=_COLOURS[check.level], bold=check.level == "fail")
        yield f"{level}  {check.name:<{width}}  {cell(check.said)}"
        for heading, text in (("means", check.means), ("repair", check.repair)):
            if text:
                yield f"{'':<{width + 6}}  {heading + ':':<7} {text}"


@app.command()
def replay(
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Due then or later: -1h, or a time.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Due earlier: 0s is now.")],
    *,
    prefix: OnlyOf = None,
    completed: Annotated[bool, typer.Option("--completed", help="Also run completed timers once more.")] = False,
    rate: Annotated[str, typer.Option(metavar="RATE", help="How fast: 50/s, 100/m …")] = "100/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run, and when.")] = False,
    output: Output = "table",
) -> None:
    """Run timers again that failed, became unhandled or were skipped, and were due in a window of time."""
    window = Filter.parse({"prefix": prefix, "due_after": since, "due_before": until})
    pace = Rate.parse(rate)

    async def act(client: TimerClient, store: Store) -> list[Replayed]:
        fixed = window.at(await store.now_ms())
        if (fixed.due_after or 0) >= (fixed.due_before or 0):
            raise InvalidInput.of("to", until, "a time after --from")
        planned = await preview(store, fixed, pace, completed=completed)
        if dry_run:
            return planned
        with progress("replay", len(planned)) as show:
            return await arm_again(store, planned, show)

    found = run(act)
    show([each.to_json() for each in found], output)
    armed = sum(each.result == "armed" for each in found)
    summary = f"{len(found)} would run" if dry_run else f"{armed} of {len(found)} armed"
    note(f"{summary}, {rate}")


@app.command()
def config(context: typer.Context, output: Output = "table") -> None:
    """Show the settings in effect, where each comes from, and the processors found. Exit with 1 if some cannot be
    loaded."""
    settings = load_settings()
    origins = {**setting_origins(), **{name: "--url" for name in (URL_NAME,) if name in context.meta}}
    rows = [{"name": n, "value": text, "from": origins[n]} for n, text in _setting_texts(settings).items()]
    try:
        processors, failed = _processors(settings), None
    except ConfigurationError as error:
        processors, failed = [], error
    show({"settings": rows, "processors": processors}, output, [*table(rows), "", *table(processors)])
    if failed is not None:
        raise failed


def _processors(settings: Settings) -> list[dict[str, Any]]:
    found = find(settings.processors, settings.loaded, dict(settings.webhook_targets))
    registry = Registry([each for each, _ in found], settings.served)
    registry.check_only()
    sources = {each.prefix: source for each, source in found}
    return [
        {"prefix": each.prefix, "function": each.origin, "from": sources[each.prefix]} for each in registry.processors
    ]


def _setting_texts(settings: Settings) -> dict[str, str | None]:
    """The settings by name, as a person would write them. Secrets are `***`; a setting that is not set is None."""
    texts = {
        name: settings.length(field) if field.endswith("_ms") else _setting_text(getattr(settings, field))
        for name, field in zip(SETTING_NAMES, Settings.model_fields, strict=True)
    }
    builtin = "all" if settings.builtin is None else texts["TIMERS_BUILTIN"] or "none"
    in_effect = {URL_NAME: settings.redacted_redis_url, "TIMERS_BUILTIN": builtin}
    return {**texts, **in_effect, "TIMERS_DURABILITY": settings.fleet_wide["TIMERS_DURABILITY"]}


def _setting_text(value: object) -> str | None:
    match value:
        case None:
            return None
        case SecretStr():
            return "***"
        case bool():
            return str(int(value))
        case (str() as prefix, SecretStr()):
            return f"{prefix}=***" if prefix else "***"
        case tuple():
            return ",".join(str(_setting_text(part)) for part in value)
        case frozenset():
            return ",".join(sorted(value))
    return str(value)


@keys.command()
def make(
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="What it covers; `name*` matches several. Repeatable. Default: all."),
    ] = None,
    right: Annotated[
        list[str] | None,
        typer.Option(metavar="read,write,operate", help="What its holder may do. Repeatable. Default: all."),
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Name of its holder, shown in the list.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="100/s", help="Maximum rate of calls.")] = None,
    pending: Annotated[int | None, typer.Option(metavar="N", help="Maximum of waiting timers.")] = None,
    most_prefixes: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum of prefixes with timers (with --pending 100).")
    ] = None,
    entry_only: Annotated[
        bool, typer.Option("--entry-only", help="Do not store it in Redis; you put its entry into TIMERS_API_KEYS.")
    ] = False,
    output: Output = "table",
) -> None:
    """Create a key and show it once. Every pod accepts it within a second."""
    options = {"rate": rate, "pending": pending, "most_prefixes": most_prefixes, "name": name}
    secret, kept = make_key(parts(",".join(prefix or "*")), parts(",".join(right or RIGHTS)), **options)
    if not entry_only:
        run(lambda _, store: Callers(store).keep(kept.id, kept.entry))
    show({"key": secret, "entry": kept.entry}, output)
    stored = f"shown only once; from now on the API requires a key; `timers keys revoke {kept.id}` revokes this one"
    note("the key is shown only once; put the entry into TIMERS_API_KEYS of every pod" if entry_only else stored)


@keys.command("ls")
def list_keys(output: Output = "table") -> None:
    """List the keys in Redis, and those of this environment's TIMERS_API_KEYS."""
    show(run(_listed), output)


async def _listed(client: TimerClient, store: Store) -> list[dict[str, Any]]:
    entries = await Callers(store).entries()
    settings = load_worker_settings()
    configured = read_entries(settings.api_keys.get_secret_value() if settings.api_keys else "")
    rows = [_key_row(key.id, key, "settings", entries) for key in configured]
    known = {key.id for key in configured}
    rows += [_key_row(id_, ApiKey.kept(entry), "redis", entries) for id_, entry in entries.items() if id_ not in known]
    return sorted(rows, key=lambda row: (row["made"] or "", row["id"]))


def _key_row(key_id: str, key: ApiKey | None, kept: str, entries: Mapping[str, str]) -> dict[str, Any]:
    options = {} if key is None else key.options
    status = REVOKED if entries.get(key_id) == REVOKED else "unreadable" if key is None else "valid"
    return {
        "id": key_id,
        "name": options.get("name"),
        "prefixes": key and list(key.prefixes),
        "rights": key and sorted(key.rights),
        **{name: options.get(name) for name in ("rate", "pending", "most_prefixes", "made")},
        "kept": kept,
        "status": status,
    }


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, the part after tmk_.")]) -> None:
    """Revoke a key, wherever it is kept. Every pod refuses it within a second."""
    if not KEY_ID.fullmatch(key_id):  # not shown: it may be the key itself
        raise InvalidInput.of("ID", "what was given", "the part of the key between tmk_ and the next _")
    if not run(lambda _, store: Callers(store).revoke(key_id)):
        note(f"no stored key has the id {key_id!r}; a key with this id in TIMERS_API_KEYS is now refused")
