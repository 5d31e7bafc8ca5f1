"""Owns the pages of one timer: its life, the actions on it, and the form that arms or changes one."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from timers.api.auth import acting, require_visible
from timers.api.operations import page_at
from timers.client.fleet import read_story
from timers.core.decide import next_occurrence
from timers.core.explain import PUNCTUAL_MS, attempts
from timers.core.fields import decode_text
from timers.core.model import Status, Timer
from timers.core.spec import NewTimer, TimerChange
from timers.dashboard.render import pretty, redirect
from timers.dashboard.site import Pages, form_of, number_of, show
from timers.errors import InvalidInput, Refused, TimersError, shown
from timers.setting_values import parts

OCCURRENCES: Final = 10
NEW_FIELDS: Final = ("prefix", "id", "when", "payload", "repeat", "retry", "missed", "timeout", "tags", "metadata")
CHANGED_FIELDS: Final = ("when", "payload", "repeat", "retry", "tags", "metadata")
_JSON_FIELDS: Final = ("payload", "repeat", "retry", "metadata")
_JSON_BEGINS: Final = ("{", "[")

INDENTED_CHARACTERS: Final = 32 * 1024
"""The longest JSON that a form shows indented. Indented, a payload of the largest size may be too large for the body of
a form, where the end of a line alone takes six bytes."""

DONE: Final[Mapping[str, str]] = {
    "cancel": "Cancelled. It will not start.",
    "fire": "Due now.",
    "retry": "Armed again, due now.",
    "reschedule": "Rescheduled.",
    "edit": "Changed.",
    "new": "Armed.",
}
"""What the page says after an action."""


def occurrences(timer: Timer) -> Iterator[int]:
    """When a repeating timer is due next, in epoch ms, if each run takes no time."""
    repeat = timer.repeat
    if repeat is None or timer.status not in (Status.SCHEDULED, Status.RUNNING):
        return
    for _ in range(OCCURRENCES):
        yield timer.due_ms
        planned = next_occurrence(timer, repeat, timer.due_ms)
        if planned is None:
            return
        due_ms, progress, _ = planned
        timer = timer._replace(due_ms=due_ms, progress=progress)


class TimerPages(Pages):
    @page_at("GET timers/{prefix}/{id}", "read")
    async def page(self, request: web.Request, refused: str = "") -> web.Response:
        """Answers 200 with the timer, or 409 with why an action was refused."""
        timer = await self._client.get(*_identity(request))
        once = _once(timer.last_error)
        return self._show(
            request,
            "timer",
            status=409 if refused else 200,
            timer=timer,
            answers=[once(line) for line in (await read_story(self._store, timer))[len(timer.history) :]],
            once=once,
            attempts=attempts(timer.history)[::-1],
            punctual_ms=PUNCTUAL_MS,
            occurrences=list(occurrences(timer)),
            json=timer.to_json(),
            refused=refused,
            done=DONE.get(request.query.get("done", ""), ""),
        )

    @page_at("POST timers/{prefix}/{id}/{action}", "write")
    async def act(self, request: web.Request) -> web.Response:
        """Answers 303 back to the timer, or 409 with the timer and why the action was refused."""
        prefix, timer_id = _identity(request)
        form, action = await form_of(request), request.match_info["action"]
        client, version = acting(self._client, request), number_of(form, "version")
        acts: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "cancel": lambda: client.cancel(prefix, timer_id, version=version),
            "purge": lambda: client.cancel(prefix, timer_id, version=version, purge=True),
            "fire": lambda: client.fire(prefix, timer_id),
            "retry": lambda: client.retry(prefix, timer_id),
            "reschedule": lambda: client.reschedule(prefix, timer_id, **due_of(form.get("when", ""))),
        }
        if action not in acts:
            raise web.HTTPNotFound(text=f"{shown(action)} is not an action for a timer")
        try:
            await acts[action]()
        except (Refused, InvalidInput) as error:
            return await self.page(request, str(error))
        if action == "purge":
            return redirect(f"/ui/timers?prefix={prefix}")
        return redirect(f"/ui/timers/{prefix}/{timer_id}?done={action}")

    @page_at("GET new", "write")
    async def new_page(self, request: web.Request) -> web.Response:
        """Answers 200 with the form, empty or filled in from another timer."""
        prefix, _, timer_id = request.query.get("from", "").partition(":")
        values = {"when": "1h", "missed": "fire"}
        if timer_id:
            require_visible(request, prefix)
            values = {**_values(await self._client.get(prefix, timer_id)), "prefix": prefix, "when": "1h"}
        return _form(request, "Arm a timer", NEW_FIELDS, values)

    @page_at("POST new", "write")
    async def new(self, request: web.Request) -> web.Response:
        """Answers 303 to the new timer, or 422 or 409 with the form and what is wrong."""
        form = await form_of(request)
        try:
            new = NewTimer.parse(_spec(form, NEW_FIELDS))
            require_visible(request, new.prefix)
            armed = await acting(self._client, request).arm(new)
        except TimersError as error:
            return _form(request, "Arm a timer", NEW_FIELDS, form, error)
        return redirect(f"/ui/timers/{armed.timer.prefix}/{armed.timer.id}?done=new")

    @page_at("GET timers/{prefix}/{id}/edit", "write")
    async def edit_page(self, request: web.Request) -> web.Response:
        """Answers 200 with the form, filled in."""
        timer = await self._client.get(*_identity(request))
        return _form(request, f"Change {timer.key}", CHANGED_FIELDS, _values(timer))

    @page_at("POST timers/{prefix}/{id}/edit", "write")
    async def edit(self, request: web.Request) -> web.Response:
        """Answers 303 back to the timer, or 422 or 409 with the form and what is wrong."""
        prefix, timer_id = _identity(request)
        form = await form_of(request)
        try:
            change = TimerChange.parse(_spec(form, CHANGED_FIELDS, emptied=True))
            client = acting(self._client, request)
            await client.change(prefix, timer_id, change, version=number_of(form, "version") or 0)
        except (Refused, InvalidInput) as error:
            return _form(request, f"Change {prefix}:{timer_id}", CHANGED_FIELDS, form, error)
        return redirect(f"/ui/timers/{prefix}/{timer_id}?done=edit")


def due_of(when: str) -> Mapping[str, Any]:
    """`delay` or `due_at` from what a person writes: a duration, a time, or epoch ms."""
    when = when.strip()
    if len(when) > 10 and ("T" in when or when.isdecimal()) and not when.startswith("P"):
        return {"due_at": int(when) if when.isdecimal() and len(when) < 16 else when}
    return {"delay": when}


def _once(error: Mapping[str, Any] | None) -> Callable[[str], str]:
    """A function that leaves the last error out of a line about the timer, because the page shows it in full."""
    reason = str((error or {}).get("reason", ""))
    named = f"{(error or {}).get('type', '')}: {reason}"

    def shorten(line: str) -> str:
        before, found, said = line.partition("; the last error: ")
        return before if found and reason and said.startswith(reason) else line.replace(named, "the error above")

    return shorten if error else str


def _identity(request: web.Request) -> tuple[str, str]:
    return request.match_info["prefix"], request.match_info["id"]


def _values(timer: Timer) -> dict[str, str]:
    fields: Mapping[str, Any] = {**timer.to_json(), "metadata": timer.metadata or None}
    given = {name: "" if fields[name] is None else _json_text(fields[name]) for name in _JSON_FIELDS}
    missed = fields["missed"] if isinstance(fields["missed"], str) else pretty(fields["missed"])
    rest = {"timeout": str(fields["timeout"] or ""), "missed": missed, "tags": _tags_text(timer.tags)}
    return {**given, **rest, "version": str(timer.version), "when": ""}


def _json_text(value: object) -> str:
    text = pretty(value)
    return text if len(text) <= INDENTED_CHARACTERS else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tags_text(tags: Sequence[str]) -> str:
    """Tags as a form shows them: separated by commas, or as JSON if they could not be read from that."""
    text = ", ".join(tags)
    return (
        text if parts(text) == [*tags] and not text.startswith(_JSON_BEGINS) else json.dumps(tags, ensure_ascii=False)
    )


def _spec(form: Mapping[str, str], names: Sequence[str], *, emptied: bool = False) -> dict[str, Any]:
    """The API's fields from a form's fields. An empty field is left out; with `emptied` it removes what was there.
    Raises InvalidInput."""
    spec: dict[str, Any] = {}
    for name in names:
        text = form.get(name, "").strip()
        if name == "when":
            spec.update(due_of(text) if text else {})
        elif text:
            spec[name] = _value(name, text)
        elif emptied:
            spec[name] = {"tags": [], "metadata": {}}.get(name)
    return spec


def _value(name: str, text: str) -> Any:
    if name in _JSON_FIELDS or text.startswith(_JSON_BEGINS):
        return decode_text(text, name)
    return parts(text) if name == "tags" else text


def _form(
    request: web.Request,
    title: str,
    names: Sequence[str],
    values: Mapping[str, str],
    error: Exception | None = None,
) -> web.Response:
    wrong: dict[str, str] = {}
    for each in error.errors if isinstance(error, InvalidInput) else ():
        field = each.field.partition(".")[0]
        name = "when" if field in ("delay", "due_at") else field
        wrong[name if name in names else ""] = str(each)
    if error is not None and not wrong:
        wrong[""] = str(error)
    status = 200 if error is None else 409 if isinstance(error, Refused) else 422
    return show(request, "form", status=status, title=title, names=names, values=values, wrong=wrong)
