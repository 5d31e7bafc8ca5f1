"""Owns the commands for API keys: make, ls, revoke."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from timers.access import RIGHTS, ApiKey, Scope, make_key, parse_rights, read_entries
from timers.cli.output import Format, Output, show_record, show_records
from timers.cli.session import Session, run
from timers.errors import InvalidInput
from timers.settings import load_worker_settings
from timers.store.callers import REVOKED, Callers

keys = typer.Typer(name="keys", help="Manage API keys.", no_args_is_help=True)

Prefixes = Annotated[
    list[str] | None,
    typer.Option(
        "--prefix", metavar="PREFIX", help="What it covers; `name*` matches several. Repeatable. Default: all."
    ),
]
Rights = Annotated[str, typer.Option("--right", metavar="read,write,operate", help="What its holder may do.")]

_EVERY_RIGHT: Final = ",".join(RIGHTS)


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    keys.command()(make)
    keys.command()(ls)
    keys.command()(revoke)
    app.add_typer(keys)


def make(
    prefix: Prefixes = None,
    right: Rights = _EVERY_RIGHT,
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
    output: Output = Format.TABLE,
) -> None:
    """Make a key, and show it this one time. Every pod accepts it within two seconds."""
    scope = Scope.parse(_parts(prefix or ["*"]))
    today = datetime.now(UTC).date().isoformat()
    rights = parse_rights(_parts([right]))
    secret, kept = make_key(
        scope, rights, rate=rate, pending=pending, most_prefixes=most_prefixes, name=name, made=today
    )
    if not entry_only:
        run(lambda session: Callers(session.store).keep(kept.id, kept.entry))
    show_record({"key": secret, "entry": kept.entry}, output)
    typer.echo(f"timers: {_what_next(kept, entry_only)}", err=True)


def _what_next(kept: ApiKey, entry_only: bool) -> str:
    if entry_only:
        return "the key is shown only once; put the entry into TIMERS_API_KEYS of every pod"
    return f"shown only once; from now on the API requires a key; `timers keys revoke {kept.id}` revokes this one"


def ls(output: Output = Format.TABLE) -> None:
    """List the keys in Redis, and those of this environment's TIMERS_API_KEYS."""
    show_records(run(_listed), output)


async def _listed(session: Session) -> list[dict[str, Any]]:
    entries = await Callers(session.store).entries()
    settings = load_worker_settings()
    configured = read_entries(settings.api_keys.get_secret_value() if settings.api_keys else "")
    rows = [_row(key, "settings", entries) for key in configured]
    known = {key.id for key in configured}
    rows += [_kept_row(key_id, entry, entries) for key_id, entry in entries.items() if key_id not in known]
    return sorted(rows, key=lambda row: (row["made"] or "", row["id"]))


def _kept_row(key_id: str, entry: str, entries: Mapping[str, str]) -> dict[str, Any]:
    try:
        return _row(ApiKey.parse(entry), "redis", entries)
    except InvalidInput:
        status = REVOKED if entry == REVOKED else "unreadable"
        nothing = dict.fromkeys(("name", "prefixes", "rights", "rate", "pending", "most_prefixes", "made"))
        return {"id": key_id, **nothing, "kept": "redis", "status": status}


def _row(key: ApiKey, kept: str, entries: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "prefixes": list(key.scope.patterns),
        "rights": sorted(key.rights),
        "rate": key.rate_text,
        "pending": key.pending,
        "most_prefixes": key.most_prefixes,
        "made": key.made,
        "kept": kept,
        "status": REVOKED if entries.get(key.id) == REVOKED else "valid",
    }


def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, the part after tmk_.")]) -> None:
    """Revoke a key, wherever it is kept. Every pod refuses it within two seconds."""
    if "_" in key_id:
        raise InvalidInput.of("ID", "a whole key", "its id only: the part between tmk_ and the next _")
    if not run(lambda session: Callers(session.store).revoke(key_id)):
        typer.echo(
            f"timers: Redis had no key {key_id!r}; if TIMERS_API_KEYS has one, it is refused from now on", err=True
        )


def _parts(given: Sequence[str]) -> list[str]:
    return [part.strip() for text in given for part in text.split(",") if part.strip()]
