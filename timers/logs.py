"""Owns how logs look: one line per event on stderr, from structlog and from the standard library alike.

Console for people, JSON for machines. Times are ISO 8601 in UTC. No value can start a new line or control a terminal.
An exception is logged as data: type, text and frames, without local variables, which may hold secrets.
"""

import logging
import os
import select
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The request that is being answered; every log line has it meanwhile. (structlog's own context variables cost ten
times as much to set, and this one is set for every request.)"""


running: Final[ContextVar[Any]] = ContextVar("running", default=None)
"""The run in whose context a processor works, if any; every log line has what its `named` tells."""

REMINDER_SECONDS: Final = 60.0
"""What still holds is told again after this long. Else an outage would fill the log: a pod has nine services, and each
tries again twice a second."""

_FRAMES_KEPT = 20
_FRAMES_ON_CONSOLE = 4


def configure(
    format: Literal["console", "json"] | None = None,  # noqa: A002 (the setting's own word)
    level: str = "info",
) -> None:
    """Sends all logs of at least `level` to stderr. Without a format: console if stderr is a terminal, else JSON."""
    import structlog  # noqa: PLC0415 (see `_Logger`)
    from structlog.stdlib import ExtraAdder, LoggerFactory, ProcessorFormatter, add_log_level, add_logger_name  # noqa: PLC0415
    from structlog.tracebacks import ExceptionDictTransformer  # noqa: PLC0415

    frames = ExceptionDictTransformer(show_locals=False, max_frames=_FRAMES_KEPT, use_rich=False)
    # What both structlog's events and the standard library's records go through.
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _name_context,
        add_logger_name,
        add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(frames),
    ]
    # JSON escapes every control character, and with ensure_ascii Unicode's line separators too.
    renderers: list[Processor] = [structlog.processors.JSONRenderer(ensure_ascii=True)]
    if format == "console" or (format is None and sys.stderr.isatty()):
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        renderers = [_shorten_exception, _escape, renderer]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*common, ProcessorFormatter.wrap_for_formatter],
        logger_factory=LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        # Loggers are not cached: one that was used before would keep its old configuration for ever.
    )
    has_buffer = isinstance(sys.stderr, TextIOWrapper)
    handler = _Stderr(sys.stderr) if has_buffer else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            processors=[ProcessorFormatter.remove_processors_meta, *renderers],
            foreign_pre_chain=[*common, ExtraAdder()],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    logging.getLogger("alembic").setLevel(max(threshold, logging.WARNING))  # it tells of each plugin of its own
    logging.captureWarnings(capture=True)


PATIENCE_SECONDS: Final = 1.0


class _Stderr(logging.StreamHandler[TextIO]):
    """Waits only once for whoever reads stderr, and then leaves lines out until they are read again. A full pipe or a
    stopped terminal would hold up the event loop, and the thread that extends leases."""

    _rest, _left_out = b"", 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        try:
            if not self._write(b""):
                self._left_out += 1
                return
            if self._left_out:
                count, self._left_out = self._left_out, 0
                _log.warning("lines of the log left out: nobody read them", count=count)
            self._write(f"{self.format(record)}{self.terminator}".encode(errors="backslashreplace"))
        except Exception:  # noqa: BLE001 (as in logging)
            self.handleError(record)

    def _write(self, line: bytes) -> bool:
        """Write what is left of the line before, and this one. False if not all could be written."""
        seconds = 0 if self._rest else PATIENCE_SECONDS
        self._rest += line
        while self._rest and self._takes_more(seconds):
            some, self._rest = self._rest[: select.PIPE_BUF], self._rest[select.PIPE_BUF :]
            self.stream.buffer.write(some)
            self.stream.flush()
        return not self._rest

    def _takes_more(self, seconds: float) -> bool:
        """Whether a part of a line can be written without waiting for a reader."""
        with suppress(OSError, ValueError):  # it is no file, or it is closed: then writing says so
            return bool(select.select([], [self.stream], [], seconds)[1])
        return True


class _Logger:
    """Structlog's logger of that name, found when it is first used: most commands log nothing, and importing structlog
    with rich is a fifth of their time."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _found(self) -> "FilteringBoundLogger":
        import structlog  # noqa: PLC0415 (see above)

        return cast("FilteringBoundLogger", structlog.get_logger(self._name))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # a copy asks this before it has a name
            raise AttributeError(name)
        return getattr(self._found, name)


def get_logger(name: str) -> "FilteringBoundLogger":
    """A logger for a module, as in `log.info("claimed", prefix=prefix, id=id)`. May be made before `configure`."""
    return cast("FilteringBoundLogger", _Logger(name))


class Reminders:
    """What the log was told lately. In one outage several reasons may take turns."""

    def __init__(self) -> None:
        self._told: dict[object, float] = {}

    def is_due(self, what: object) -> bool:
        """Whether to tell it: it was not told for REMINDER_SECONDS."""
        now = time.monotonic()
        self._told = {each: at for each, at in self._told.items() if now - at < REMINDER_SECONDS}
        if what in self._told:
            return False
        self._told[what] = now
        return True


def _name_context(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    answered, run = request_id.get(), running.get()
    if answered is not None:
        event.setdefault("request_id", answered)
    return event if run is None else {**run.named, **event}


def _shorten_exception(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    """The chain of exceptions as one text, each with its innermost frames, innermost first."""
    stacks = event.pop("exception", None)
    if isinstance(stacks, list):
        event["error"] = " <- ".join(_one_exception(stack) for stack in stacks)
    return event


def _one_exception(stack: "EventDict") -> str:
    frames = [f"{Path(f['filename']).name}:{f['lineno']} in {f['name']}" for f in reversed(stack["frames"])]
    place = " < ".join(frames[:_FRAMES_ON_CONSOLE])
    return f"{stack['exc_type']}: {stack['exc_value']}" + (f" ({place})" if place else "")


def _escape(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    return {key: _printable(value if isinstance(value, str) else repr(value)) for key, value in event.items()}


def _printable(text: str) -> str:
    """The text with escapes such as `\\n` and `\\x1b` for everything that is not a visible character or a space:
    controls, line ends, direction marks …"""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_log = get_logger("timers.logs")
