"""Owns looking a user up just before a message is sent, and deciding which users get none."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from yarl import URL

from timers import Retry
from timers_processors.calling import Call, HttpClient, accepted

LOOKUP_SECONDS: Final = 8.0
USER_BYTES: Final = 64 * 1024

UNLESS: Final = ("verified", "unsubscribed", "left", "deleted")
"""A user with one of these fields gets no message, unless the payload says otherwise."""

_GONE: Final = (404, 410)


class Users:
    """Looks users up at a URL with `{user}` in it, such as TIMERS_USER_URL."""

    def __init__(self, url: str, caller: HttpClient) -> None:
        self._url, self._caller = url, caller

    async def find(self, user: str | int) -> Mapping[str, Any] | None:
        """The user's fields; None if there is no such user (any more). Raises Retry if the endpoint gives no usable
        answer."""
        call = Call("GET", URL(self._url.replace("{user}", quote(str(user), safe="")), encoded=True), _JSON, b"")
        answer = await self._caller.call(call, LOOKUP_SECONDS, USER_BYTES)
        if answer.status in _GONE:
            return None
        accepted(call, answer, fails_on_4xx=False)
        try:
            found = json.loads(answer.text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Retry(f"{call.target} answered no JSON object of at most {USER_BYTES} bytes for the user")
        return found


_JSON: Final = {"Accept": "application/json"}


def why_not(found: Mapping[str, Any] | None, unless: Iterable[str]) -> str | None:
    """Why the user gets no message; None if they get one."""
    if found is None or found.get("active") is False:
        return "the user has left"
    told = next((name for name in unless if found.get(name)), None)
    return None if told is None else "the user has left" if told == "left" else f"the user is {told}"
