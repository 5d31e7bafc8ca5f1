"""Owns `timers config`, the command that shows the settings in effect."""

from typing import Any

import typer
from pydantic import SecretStr

from timers.cli.output import Format, Output, show_document, show_records
from timers.cli.session import URL_NAME
from timers.core.durations import DAY_MS, Duration
from timers.errors import ConfigurationError
from timers.processor import Registry, find
from timers.settings import LENGTHLESS, SETTING_NAMES, Settings, load_settings, setting_origins


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(config)


def config(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Show the settings in effect, where each comes from, and the processors found. Exit with 1 if some cannot be
    loaded."""
    settings = load_settings()
    origins = {**setting_origins(), **{name: "--url" for name in (URL_NAME,) if name in context.meta}}
    rows = [{"name": n, "value": text, "from": origins[n]} for n, text in _setting_texts(settings).items()]
    try:
        processors, failed = _processors(settings), None
    except ConfigurationError as error:
        processors, failed = [], error
    if output is Format.TABLE:
        show_records(rows, output)
        typer.echo()
        show_records(processors, output)
    else:
        show_document({"settings": rows, "processors": processors}, output)
    if failed is not None:
        raise failed


def _processors(settings: Settings) -> list[dict[str, Any]]:
    found = find(settings.processors, settings.loaded)
    registry = Registry([each for each, _ in found], settings.served)
    registry.check_only()
    sources = {each.prefix: source for each, source in found}
    return [
        {"prefix": each.prefix, "function": each.origin, "from": sources[each.prefix]} for each in registry.processors
    ]


def _setting_texts(settings: Settings) -> dict[str, str | None]:
    """The settings by name, as a person would write them. Secrets are `***`; a setting that is not set is None."""
    texts = {
        name: _setting_text(getattr(settings, field), is_length=field.endswith("_ms")) or LENGTHLESS.get(field)
        for name, field in zip(SETTING_NAMES, Settings.model_fields, strict=True)
    }
    builtin = "all" if settings.builtin is None else texts["TIMERS_BUILTIN"] or "none"
    return {**texts, URL_NAME: settings.redacted_redis_url, "TIMERS_BUILTIN": builtin}


def _setting_text(value: object, *, is_length: bool = False) -> str | None:
    match value:
        case None:
            return None
        case SecretStr():
            return "***"
        case bool():
            return str(int(value))
        case int() if is_length:
            return str(Duration(days=value // DAY_MS, ms=value % DAY_MS))
        case (str() as prefix, SecretStr()):
            return f"{prefix}=***" if prefix else "***"
        case tuple():
            return ",".join(str(_setting_text(part)) for part in value)
        case frozenset():
            return ",".join(sorted(value))
    return str(value)
