"""Owns what surrounds every page: who may see it, which page may send its forms, errors in words, the last state while
Redis is down, signing in, and the stream of server-sent events that tells an open page that there is something new. The
page then reads its live part again."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.answer import headers_of
from timers.api.auth import READER_SECONDS, Auth, caller_of, check_origin
from timers.api.credentials import forget_session, is_read_only, set_read_only
from timers.api.operations import DASHBOARD, operation_of, page_at
from timers.api.requests import BODY_LIMIT_BYTES, read_bytes
from timers.api.stream import EventRoutes, write
from timers.client import TimerClient
from timers.client.feed import LOG_LIMIT, FeedListener
from timers.core.durations import in_units
from timers.dashboard import render
from timers.doctor.checks import away_from, partly_away
from timers.errors import Denied, InvalidInput, TimersError, Unauthorized, Unavailable
from timers.logs import get_logger
from timers.store.servers.connections import Connections
from timers.store.store import Store

T = TypeVar("T")

REMEMBERED_BYTES: Final = 8 * 1024 * 1024
"""How much of the last seen pages is kept, to show them while Redis is down: about a hundred ordinary pages."""

FIELDS_LIMIT: Final = 2000
"""The most fields in a form. It is enough for a page on which all timers are chosen, and no other form has as many."""

STATE: Final = "<!--state-->"
"""The place in a page for the note of its age."""

_log = get_logger("timers.dashboard")


def show(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """A page in the frame that every page has."""
    caller = caller_of(request)
    frame = {
        "url": request.path_qs,
        "key": caller.id if caller else "",
        "rights": caller.rights if caller else frozenset(),
        "is_admin": caller is not None and caller.may_make_keys,
        "sees_all": caller is not None and caller.sees is None,
        "read_only": is_read_only(request),
        "signed_in": caller is not None,
    }
    text = render.environment().get_template(f"{template}.html").render(**frame, **values)
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=render.HEADERS)


class Pages:
    """Pages of one kind."""

    def __init__(self, store: Store, client: TimerClient, auth: Auth) -> None:
        self._store, self._client, self._auth = store, client, auth

    def _show(self, request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """As `show`, with the time by the server's clock."""
        return show(request, template, status=status, now_ms=round(self._store.clock.now_ms()), **values)


async def form_of(request: web.Request) -> Mapping[str, str]:
    """The fields of a form. Of several with one name, the last counts. Raises InvalidInput, or HTTP 413."""
    return dict(await pairs_of(request))


async def pairs_of(request: web.Request) -> Sequence[tuple[str, str]]:
    """Like `form_of`, but in order, and with names that come several times."""
    raw = await read_bytes(request, BODY_LIMIT_BYTES)
    try:
        return parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=FIELDS_LIMIT, errors="strict")
    except ValueError:
        raise InvalidInput.of("", raw[:80], f"a form in UTF-8 with at most {FIELDS_LIMIT} fields") from None


def number_of(form: Mapping[str, str], name: str) -> int | None:
    """The number in a field, or None if the field is empty. Raises InvalidInput."""
    text = form.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidInput.of(name, text, "a whole number such as 100")
    return int(text) if text else None


def paged(request: web.Request, found: Sequence[T], size: int) -> tuple[Sequence[T], Mapping[str, int]]:
    """Those on the page that is asked for, and what its template needs to lead to the others."""
    given = request.query.get("page", "1")
    at = max(1, int(given)) if given.isascii() and given.isdecimal() and len(given) < 6 else 1
    return found[(at - 1) * size : at * size], {"total": len(found), "at": at, "pages": -(-len(found) // size)}


class Guard:
    """The middleware around all pages. It runs inside the one that answers with problems."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._remembered: dict[tuple[str, str], tuple[float, bytes]] = {}

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors of pages into pages."""
        operation = operation_of(request)
        # The first page answers programs like any other call: it is in the document too.
        is_for_people = request.path != "/" or "text/html" in request.headers.get("Accept", "")
        if operation is None or operation.tag != DASHBOARD or not is_for_people:
            return await handler(request)
        try:
            if request.method == "POST":
                _require_own_page(request)
            response = await handler(request)
        except Unauthorized:
            return _to_sign_in(request)
        except Unavailable as error:
            return await self._last_state(request, error)
        except TimersError as error:
            page = _error(request, error.problem.status, error.problem.title, error)
            page.headers.update(headers_of(error))
            return page
        except web.HTTPException as error:
            return _error(request, error.status, error.reason, error.text or "")
        except Exception:  # noqa: BLE001 (a person must get a page; the log gets the error)
            _log.exception("page failed", method=request.method, path=request.path)
            return _error(request, 500, "The service failed", "This pod's log has the reason.")
        self._remember(request, response)
        return response

    def _remember(self, request: web.Request, response: web.StreamResponse) -> None:
        caller = caller_of(request)
        if (
            request.method != "GET"
            or response.status != 200
            or caller is None
            or not isinstance(response, web.Response)
            or not isinstance(response.body, bytes)
        ):
            return
        page = (caller.id, request.path_qs)
        self._remembered.pop(page, None)  # so that it becomes the newest
        self._remembered[page] = (time.monotonic(), response.body)
        while sum(len(body) for _, body in self._remembered.values()) > REMEMBERED_BYTES:
            del self._remembered[next(iter(self._remembered))]

    async def _last_state(self, request: web.Request, error: Unavailable) -> web.Response:
        """The page as this caller last saw it, with its age, or a page that only says what is wrong."""
        said = partly_away(self._connections, await away_from(self._connections, READER_SECONDS))
        title = said[:1].upper() + said[1:] or error.problem.title
        caller = caller_of(request)
        seen_at, seen = self._remembered.get((caller.id if caller else "-", request.path_qs), (0.0, b""))
        if request.method != "GET" or not seen:
            return _error(request, 503, title, error)
        age = in_units((time.monotonic() - seen_at) * 1000)
        macros: Any = render.environment().get_template("macros.html").module
        text = seen.decode().replace(STATE, macros.away(title, age, str(error)), 1)
        return web.Response(text=text, status=503, content_type="text/html", headers=render.HEADERS)


def _require_own_page(request: web.Request) -> None:
    """Accept a form only from a page of this host. Browsers send the origin with every POST."""
    if "Origin" not in request.headers:
        raise Denied("this form needs the Origin header that browsers send; programs should use the API")
    check_origin(request)


def _to_sign_in(request: web.Request) -> web.Response:
    where = f"/ui/sign-in?to={quote(request.path_qs if request.method == 'GET' else '/', safe='')}"
    if "HX-Request" in request.headers:
        return web.Response(headers={**render.HEADERS, "HX-Redirect": where})
    return render.redirect(where)


def _error(request: web.Request, status: int, title: str, detail: object) -> web.Response:
    response = show(request, "error", status=status, title=title, detail=str(detail))
    if request.method == "POST":
        response.headers.update(_REPLACED)
    return response


_REPLACED: Final = {"HX-Retarget": "#main", "HX-Reselect": "#main", "HX-Reswap": "outerHTML"}
"""Tells htmx to replace the whole page with the error, and not only the part that was asked for."""


class SignIn(Pages):
    """Serves static files, signing in and out, and making a browser read-only."""

    @page_at("GET static/{name}", None)
    async def asset(self, request: web.Request) -> web.Response:
        """Answers 200 with a static file. Its name contains a hash of its content, so it never changes."""
        found = render.assets().get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text="there is no such file; the page is from another version of the service")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=found[1], content_type=found[2], charset="utf-8", headers=headers)

    @page_at("GET sign-in", None)
    async def page(self, request: web.Request) -> web.Response:
        """Answers 200 with the form, or 303 if no key is needed."""
        if not await self._auth.asks_for_keys():
            return render.redirect("/")
        return show(request, "sign_in", to=_own(request.query.get("to", "/")), wrong=False)

    @page_at("POST sign-in", None)
    async def sign_in(self, request: web.Request) -> web.Response:
        """Answers 303 to the page that was asked for, with the cookie; 403 with the form again; or 429."""
        await self._auth.admit_sign_in(request.remote)
        form = await form_of(request)
        to, caller = _own(form.get("to", "/")), await self._auth.owner_of(form.get("key", "").strip())
        if caller is None:
            return show(request, "sign_in", status=403, to=to, wrong=True)
        response = render.redirect(to)
        await self._auth.sessions.begin(request, response, caller.id)
        set_read_only(request, response, wanted="read_only" in form)
        return response

    @page_at("POST sign-out", None)
    async def sign_out(self, request: web.Request) -> web.Response:
        """Answers 303 to the form, or 503 if Redis cannot note the end of the session. The cookie is gone anyway."""
        await form_of(request)
        try:
            await self._auth.sessions.end(request)
            response = render.redirect("/ui/sign-in")
        except Unavailable as error:
            response = _error(request, 503, "Signed out of this browser only", f"{_COPIES}: {error}")
        forget_session(response)
        return response

    @page_at("POST read-only", "read")
    async def set_read_only(self, request: web.Request) -> web.Response:
        """Answers 303 back to the first page, with or without the cookie."""
        response = render.redirect("/")
        set_read_only(request, response, wanted=(await form_of(request)).get("wanted") == "yes")
        return response


_COPIES: Final = "A copy of its cookie still opens the session until that is 12 hours old or its key is revoked"


def _own(where: str) -> str:
    """The address if it belongs to the dashboard, else the first page. This sends nobody to another site."""
    return where if where.startswith(("/ui/", "/?")) and where.isprintable() else "/"


LEAST_SECONDS: Final = 1.0
"""The shortest time between two messages to a page, however much happens."""

MOST_SECONDS: Final = 5.0
"""How long a page waits without a change before it is told anyway: pods come and go, and due timers become late."""


class LivePages(EventRoutes):
    def __init__(self, _store: Store, client: TimerClient, _auth: Auth) -> None:
        super().__init__(client, linger_seconds=0.0)

    @page_at("GET live", "read", endless=True)
    async def live(self, request: web.Request) -> web.StreamResponse:
        """Answers 200 with events until one side closes."""
        return await self.stream(request)

    async def _pass_on(self, listener: FeedListener, response: web.StreamResponse) -> None:
        """Tell only that there are changes, not which."""
        while True:
            await write(response, b"data: new\n\n")
            await asyncio.sleep(LEAST_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_SECONDS - LEAST_SECONDS):
                    if await listener.next() is None:
                        return
            listener.waiting(LOG_LIMIT)
