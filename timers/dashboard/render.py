"""Owns turning pages into HTML: the templates, the words for times and numbers, and static files named by their
content."""

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from timers.core.durations import in_units

_ROOM: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
"""Nothing inline, nothing from other hosts, no page in a frame, nothing in a cache."""


def moment(ms: float) -> str:
    """A time to the second: `2026-11-22 06:30:00 UTC`."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"


def clock(ms: float) -> str:
    """A time of day to the millisecond, with the day unless it is today: `06:30:00.125`."""
    moment_then = datetime.fromtimestamp(ms / 1000, UTC)
    pattern = "%H:%M:%S" if moment_then.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S"
    return f"{moment_then.strftime(pattern)}.{int(ms) % 1000:03d}"


def number(value: int) -> str:
    """A number with thin spaces between thousands, which nobody takes for a decimal point."""
    return f"{value:,}".replace(",", "\u202f")


def mebibytes(size: int) -> str:
    """A size: `12.3 MiB`."""
    return f"{size / 1024 / 1024:.1f} MiB"


def pretty(value: object) -> str:
    """JSON formatted for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@cache
def assets() -> Mapping[str, tuple[str, bytes, str]]:
    """Static files by the name in their address, which includes a hash of their content: path, content, media type."""
    found: dict[str, tuple[str, bytes, str]] = {}
    for path in sorted((*(_ROOM / "static").iterdir(), *(_ROOM / "vendor").iterdir())):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            found[f"{path.stem}.{digest}{path.suffix}"] = (path.name, content, _TYPES[path.suffix])
    return MappingProxyType(found)


def asset(name: str) -> str:
    """The address of a static file."""
    return next(f"/ui/static/{hashed}" for hashed, (known, _, _) in assets().items() if known == name)


@cache
def environment() -> Environment:
    """The templates. Everything is escaped, and an undefined name is an error."""
    made = Environment(
        loader=PackageLoader("timers.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["asset"] = asset
    filters: dict[str, Callable[[Any], str]] = {
        "mebibytes": mebibytes,
        "duration": in_units,
        "moment": moment,
        "number": number,
        "clock": clock,
        "pretty": pretty,
    }
    made.filters.update(filters)
    return made


def prepare() -> None:
    """Compile the templates of the first page, which takes longer than filling them in. Runs in its own thread."""
    for name in ("base", "macros", "overview"):
        environment().get_template(f"{name}.html")


def page(template: str, *, status: int = 200, **values: Any) -> web.Response:
    """An answer made from a template."""
    text = environment().get_template(f"{template}.html").render(values)
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)


def redirect(where: str) -> web.Response:
    """Redirect to another page, with a GET."""
    return web.Response(status=303, headers={**HEADERS, "Location": where})
