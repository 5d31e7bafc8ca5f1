"""Owns the commands that take a timer's fields: create, one from its options or many from a file; and change, one or
all that match a filter."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from timers.cli.output import Format, Output, progress, show_records, show_timer
from timers.cli.session import Session, run
from timers.cli.timers import At, Id, In, Prefix, Selection, due_of, with_selection
from timers.client import BATCH_LIMIT, Armed
from timers.core.spec import NewTimer, TimerChange
from timers.core.strict import decode
from timers.errors import InvalidInput, TimersError

Read = NewTimer | InvalidInput
"""A timer from a file, or the error that says why it is invalid."""

REMOVABLE: Final = ("payload", "repeat", "retry", "tags", "metadata")
"""What `--remove` takes."""

Payload = Annotated[str | None, typer.Option(metavar="JSON", help="Data for the processor.")]
Repeat = Annotated[
    str | None, typer.Option(metavar="1d|CRON|JSON", help="An interval, '0 9 * * MON-FRI', or the API's JSON.")
]
Retry = Annotated[
    str | None, typer.Option(metavar="N|5s,1m,…|JSON", help="Most attempts, a list of waits, or the API's JSON.")
]
Metadata = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Repeatable.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(create)
    app.command()(with_selection(change))


def create(
    prefix: Prefix = None,
    id: Id = None,
    *,
    after: In = None,
    at: At = None,
    payload: Payload = None,
    repeat: Repeat = None,
    retry: Retry = None,
    missed: Annotated[
        str | None, typer.Option(metavar="fire|skip|latest|all|JSON", help="What to do if it cannot run in time.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a run may take.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Repeatable.")] = None,
    metadata: Metadata = None,
    if_exists: Annotated[str | None, typer.Option(metavar="error|replace|keep", help="If the timer exists.")] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Arm all timers in a file: the API's JSON, or one per line.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Arm a timer, or many with --batch. Exit with 1 if any was refused."""
    given = {
        "prefix": prefix,
        "id": id,
        **_fields(payload, repeat, retry, tag, metadata),
        "missed": _json(missed, "missed") if (missed or "").startswith("{") else missed,
        "timeout": timeout,
        "if_exists": if_exists,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if after is not None or at is not None or not (batch or "repeat" in given or "retry" in given):
        given |= due_of(after, at)
    if batch is None:
        _create_one(given, output)
    elif given:
        raise InvalidInput.of(
            next(iter(given)), next(iter(given.values())), "no other option with --batch; put it into the file"
        )
    else:
        _create_all(_read(batch), output)


def change(
    chosen: Selection,
    after: In = None,
    at: At = None,
    *,
    payload: Payload = None,
    repeat: Repeat = None,
    retry: Retry = None,
    set_tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="The new tags; repeatable. Beside PREFIX and ID, --tag does the same."),
    ] = None,
    metadata: Metadata = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Remove payload, repeat, retry, tags or metadata; repeatable."),
    ] = None,
) -> None:
    """Change fields of a scheduled timer, or of all that match a filter. What is not given stays."""
    if chosen.id is not None and chosen.tag:
        set_tag = [*chosen.tag, *(set_tag or ())]
        chosen = replace(chosen, tag=None)
    given = dict(_fields(payload, repeat, retry, set_tag, metadata))
    if after is not None or at is not None:
        given |= due_of(after, at)
    for field in remove or ():
        if field in given or field not in REMOVABLE:
            raise InvalidInput.of("remove", field, f"one of {', '.join(REMOVABLE)} that is not given too")
        given[field] = None
    if not given:
        raise InvalidInput.of("payload", None, "at least one field to change: --payload, --retry, --set-tag, --in …")
    changes = TimerChange.parse(given)
    chosen.act("change", lambda session, prefix, id: session.client.change(prefix, id, changes), changes=changes)


def _fields(
    payload: str | None, repeat: str | None, retry: str | None, tags: Any, metadata: Sequence[str] | None
) -> Mapping[str, Any]:
    """The fields that are given, as in the API."""
    given = {
        "payload": _json(payload, "payload"),
        "repeat": None if repeat is None else _repeat(repeat),
        "retry": None if retry is None else _retry(retry),
        "tags": tags,
        "metadata": None if metadata is None else dict(map(_pair, metadata)),
    }
    return {name: value for name, value in given.items() if value is not None}


def _create_one(given: Mapping[str, Any], output: Format) -> None:
    if "prefix" not in given:
        raise InvalidInput.of("prefix", None, "PREFIX, or --batch FILE")
    new = NewTimer.parse(given)
    show_timer(run(lambda session: session.client.arm(new)).timer.to_json(), output)


def _create_all(timers: Sequence[Read], output: Format) -> None:
    async def arm(session: Session) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        with progress("create", len(timers)) as show:
            for start in range(0, len(timers), BATCH_LIMIT):
                some = timers[start : start + BATCH_LIMIT]
                came = iter(await session.client.batch([each for each in some if isinstance(each, NewTimer)]))
                for each in some:
                    result = next(came) if isinstance(each, NewTimer) else each
                    shown.append({"number": len(shown) + 1, **_result(each, result)})
                show(len(shown))
        return shown

    results = run(arm)
    show_records(results, output)
    refused = sum(each["error"] is not None for each in results)
    typer.echo(f"timers: {len(results) - refused} of {len(results)} armed", err=True)
    if refused:
        raise typer.Exit(1)


def _result(asked: Read, came: Armed | TimersError) -> dict[str, Any]:
    if isinstance(came, Armed):
        return {"prefix": came.timer.prefix, "id": came.timer.id, "result": came.how, "error": None}
    known = asked if isinstance(asked, NewTimer) else None
    names = {"prefix": known and known.prefix, "id": known and known.id}
    return {**names, "result": "refused", "error": str(came)}


def _read(path: str) -> list[Read]:
    """The timers in a JSON array, in the API's `{"timers": […]}`, or in a file with one JSON object per line."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput.of("batch", path, f"a file that can be read ({error.strerror})") from None
    try:
        whole = decode(raw.strip())
    except ValueError:
        return [_timer(line) for line in raw.split(b"\n") if line.strip()]
    if isinstance(whole, dict) and whole.keys() == {"timers"}:
        whole = whole["timers"]
    return [_checked(value) for value in (whole if isinstance(whole, list) else [whole])]


def _timer(line: bytes) -> Read:
    try:
        return _checked(decode(line))
    except ValueError as error:
        return InvalidInput.of("", line.decode(errors="replace"), f"one JSON object per line ({error})")


def _checked(value: object) -> Read:
    if not isinstance(value, dict):
        return InvalidInput.of("", value, "a JSON object as in POST /v1/timers")
    try:
        return NewTimer.parse(value)
    except InvalidInput as error:
        return error


def _repeat(text: str) -> Any:
    if text.startswith("{"):
        return _json(text, "repeat")
    return {"cron" if " " in text.strip() else "every": text}


def _retry(text: str) -> Any:
    if text.startswith("{"):
        return _json(text, "retry")
    return {"max_attempts": int(text)} if text.isdecimal() else {"backoff": text.split(",")}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput.of("metadata", text, "NAME=VALUE")
    return name, value


def _json(text: str | None, field: str) -> Any:
    if text is None:
        return None
    try:
        return decode(text.encode(errors="surrogateescape"))
    except ValueError as error:
        raise InvalidInput.of(field, text, f"JSON ({error})") from None
