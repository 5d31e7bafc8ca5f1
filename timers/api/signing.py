"""Owns signed requests, with the headers of Standard Webhooks (https://www.standardwebhooks.com), version 1.

A signature is HMAC-SHA256 over `id.timestamp.body`. It covers the body but not the method or the address, so it opens
only reads and calls whose effect is in their body. Each id works once.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Final

from multidict import CIMultiDictProxy

from timers.errors import Unauthorized

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

TOLERANCE_SECONDS: Final = 300
REMEMBER_MS: Final = 3 * TOLERANCE_SECONDS * 1000
"""Longer than any signature is valid: from 5 minutes before its time to 5 minutes after, on pods whose clocks
differ."""

_VERSION: Final = "v1"
# An id has no full stop, because a full stop ends the id in the signed text; otherwise two ids could share one
# signature.
_SANE_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
_SANE_TIME: Final = re.compile(r"[0-9]{1,12}")


def _only(headers: CIMultiDictProxy[str], name: str) -> str:
    given = headers.getall(name, [])
    if len(given) != 1:
        raise Unauthorized(f"a signed request has the headers {ID}, {TIMESTAMP} and {SIGNATURE}, each once")
    return given[0]


def is_signed(headers: CIMultiDictProxy[str]) -> bool:
    """Whether the request claims to be signed."""
    return SIGNATURE in headers


def keys_of(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """The keys of secrets, which are written as `whsec_` and base64."""
    return tuple(b64decode(secret.partition("_")[2]) for secret in secrets)


class Proof:
    """A signature, checked while its body arrives: a hash for each key over the headers and what has arrived. Any
    key may have signed. `id` is the request's."""

    def __init__(self, headers: CIMultiDictProxy[str], keys: Iterable[bytes], now_seconds: float) -> None:
        """Raises Unauthorized if the headers cannot be a fresh signature."""
        self.id, timestamp, signatures = (_only(headers, name) for name in (ID, TIMESTAMP, SIGNATURE))
        if not _SANE_ID.fullmatch(self.id):
            raise Unauthorized(f"{ID}: expected 1 to 256 visible ASCII characters, none of them a full stop")
        if not _SANE_TIME.fullmatch(timestamp) or abs(now_seconds - int(timestamp)) > TOLERANCE_SECONDS:
            raise Unauthorized(f"{TIMESTAMP}: expected Unix seconds, at most {TOLERANCE_SECONDS} from now")
        signed = f"{self.id}.{timestamp}.".encode()
        self._given = [signature.encode("utf-8", "surrogateescape") for signature in signatures.split(" ")]
        self._hashes = [hmac.new(key, signed, hashlib.sha256) for key in keys]

    def update(self, part: bytes) -> None:
        """Hash the next part of the body."""
        for each in self._hashes:
            each.update(part)

    def holds(self) -> bool:
        """Whether one of the signatures was made with one of the keys over the headers and the body."""
        expected = [f"{_VERSION},".encode() + b64encode(each.digest()) for each in self._hashes]
        return any(hmac.compare_digest(one, other) for one in self._given for other in expected)
