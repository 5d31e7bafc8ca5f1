"""Owns the settings: their names, defaults and bounds, and how they are read from the environment and `.env`.

The setting `TIMERS_HTTP_PORT` is the field `http_port`; a duration such as `TIMERS_LEASE` is the field `lease_ms`. A
field's description says what is accepted, and the error for a refused value ends with it. In `.env`, `${NAME}` stands
for a variable of the process or of the file itself.
"""

import difflib
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from timers import setting_values as values
from timers.access import ENTRY_RULE, read_entries
from timers.core.durations import DAY_MS, LENGTHS, Duration, parse_ms
from timers.core.fields import PREFIX_RULE, check_prefix
from timers.core.hooks import EVENTS, HOOK, Hook
from timers.core.shapes import Durability
from timers.errors import ConfigurationError, FieldError, InvalidInput, shown

Role = Literal["api", "worker"]

_NAME_PREFIX: Final = "TIMERS_"
_SERVICE_LINK: Final = re.compile(
    r"TIMERS_(\w+_)?(SERVICE_HOST=[\da-f.:]+|SERVICE_PORT(_\w+)?=\d+|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://\S+"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=\d+|ADDR=[\da-f.:]+))",
    re.ASCII,
)
"""The variables, as name and value, that Kubernetes sets in every pod for a Service called `timers` or `timers-…`. For
`timers-http` it sets TIMERS_HTTP_PORT=tcp://10.0.0.7:80, which only its value tells from a setting."""
_CONFIDENTIAL: Final = (
    *("redis_url", "ledger_url", "api_keys", "signing_secrets", "webhook_targets", "webhook_secrets", "hook_secrets"),
    *("hooks", "alarms", "smtp_url", "sms_url", "user_url"),
)
_SECRETS_RULE: Final = "[prefix=]whsec_ followed by base64 of 24 to 64 bytes, comma-separated"


def _setting_name(field: str) -> str:
    return _NAME_PREFIX + field.removesuffix("_ms").upper()


def _duration(default: str, minimum_ms: int = 0, maximum_ms: int = 3_653 * DAY_MS, or_else: str = "") -> Any:
    most = Duration.of_ms(maximum_ms)
    bounds = f"from {Duration.of_ms(minimum_ms)} to {most}" if minimum_ms else f"at most {most}"
    rule = f"{LENGTHS}, {bounds}" + (f", or {or_else}" if or_else else "")
    return Field(default=default, ge=minimum_ms, le=maximum_ms, description=rule)


def _pod_name() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip("-.")[:60]
    return f"{host or 'pod'}-{secrets.token_hex(3)}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


WEBHOOK: Final = "webhook"
"""The built-in processor that also makes those of TIMERS_WEBHOOK_TARGETS."""

_LISTED: Final = values.from_text(values.parts)
Milliseconds = Annotated[int, values.from_text(parse_ms)]


class Settings(BaseModel):
    """One pod's settings, checked and immutable. Building one reads nothing from outside; `load_settings` does."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        alias_generator=AliasGenerator(validation_alias=_setting_name),
        validate_by_name=True,
    )

    redis_url: Annotated[str, values.checked(values.check_redis_url)] | None = Field(
        default=None,
        repr=False,
        description=values.REDIS_URL,
    )
    """None: start an embedded server. Confidential; show `redacted_redis_url` instead."""
    ledger_url: Annotated[SecretStr, values.checked(values.check_ledger_url)] | None = Field(
        default=None, description=values.LEDGER_URL
    )
    """The database of the ledger; None: there is none."""
    durability: Durability | None = Field(default=None, description="fast, fsync, replicated or ledger")
    """What a create and a settle wait for; None: the ledger, if there is one."""
    roles: Annotated[frozenset[Role], _LISTED, Field(min_length=1)] = Field(
        default=frozenset({"api", "worker"}), description="api, worker, or api,worker"
    )
    http_host: str = Field(
        default="127.0.0.1", pattern=r"^[A-Za-z0-9.:_%-]+$", description="an address or name to listen on"
    )
    http_port: int = Field(default=8080, ge=0, le=65_535, description="a port from 0 (any free one) to 65535")
    probe_port: int | None = Field(default=None, ge=0, le=65_535, description="a port from 0 (any free one) to 65535")
    """None: health, readiness and metrics are served only with the API."""
    processors: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?$")], ...],
        _LISTED,
    ] = Field(default=(), description="package.module or package.module:object, comma-separated")
    builtin: Annotated[tuple[str, ...] | None, values.from_text(values.builtin_names)] = Field(
        default=None, description="all, none, or comma-separated names of built-in processors"
    )
    """The built-in processors to load; None: all. `processor.load` knows the names."""
    prefixes: Annotated[tuple[Annotated[str, AfterValidator(check_prefix)], ...], _LISTED] = Field(
        default=(), description=f"{PREFIX_RULE}, comma-separated"
    )
    """Empty: every prefix that this pod has a processor for."""
    shards: int | None = Field(
        default=None, ge=1, le=values.MAX_SHARDS, description=f"a whole number from 1 to {values.MAX_SHARDS}"
    )
    """None: 1 on a standalone server, 64 on a cluster."""
    format: int | None = Field(default=None, ge=1, le=99, description="a number of a record format, such as 1")
    """None: the newest that all live pods read."""
    shard_subset: Annotated[tuple[int, ...], values.from_text(values.shard_numbers)] = Field(
        default=(), description=f"shard numbers from 0 to {values.MAX_SHARDS - 1} or ranges of them, such as 0-15,20"
    )
    """Ascending; empty: all."""
    concurrency: int = Field(default=1000, ge=1, le=1_000_000, description="a whole number from 1 to 1000000")
    lease_ms: Milliseconds = _duration("10s", minimum_ms=100, maximum_ms=DAY_MS)
    retention_ms: Milliseconds = _duration("14d")
    retention_failed_ms: Annotated[int | None, values.milliseconds_or("forever")] = _duration(
        "forever", or_else="forever"
    )
    """For failed and unhandled timers. None: until a person acts."""
    edit_lock_ms: Milliseconds = _duration("0s")
    drain_timeout_ms: Milliseconds = _duration("25s")
    start_timeout_ms: Milliseconds = _duration("30s")
    adopt_every_ms: Annotated[int | None, values.milliseconds_or("off")] = _duration(
        "10s", minimum_ms=10, or_else="off"
    )
    """None: bare keys are switched off."""
    api_keys: Annotated[SecretStr, values.checked(read_entries)] | None = Field(default=None, description=ENTRY_RULE)
    """The text as given; `access.read_entries` parses it."""
    signing_secrets: Annotated[tuple[Annotated[SecretStr, values.checked(values.signing_key)], ...], _LISTED] = Field(
        default=(), description="whsec_ followed by base64 of 24 to 64 bytes, comma-separated"
    )
    webhook_targets: Annotated[tuple[tuple[str, SecretStr], ...], values.from_text(values.prefixed_urls)] = Field(
        default=(), description="prefix=https://host/path, comma-separated, each prefix once"
    )
    """URLs by prefix. Confidential, because a URL may hold a password or a token."""
    hooks: Annotated[tuple[tuple[str, SecretStr], ...], values.from_text(values.hook_urls)] = Field(
        default=(),
        max_length=values.HOOKS_LIMIT,
        description=f"event@prefix=https://host/path, at most {values.HOOKS_LIMIT}, comma-separated; "
        f"join events with +: {', '.join(EVENTS)}, all, and payload to send payloads; a prefix may be * or end in *",
    )
    """The requested events, and the URL to call; `requested_hooks` parses them."""
    alarms: Annotated[tuple[Annotated[SecretStr, values.checked(values.check_alarm)], ...], _LISTED] = Field(
        default=(),
        max_length=values.HOOKS_LIMIT,
        description=f"mailto:a@example.org, https://host/path or exec:/command, comma-separated, at most "
        f"{values.HOOKS_LIMIT}",
    )
    """Whom to tell that timers failed, wait or were lost."""
    public_url: Annotated[str, values.checked(values.check_url)] | None = Field(
        default=None, description="the URL at which people reach the dashboard, such as https://timers.example.org"
    )
    webhook_secrets: values.PrefixedSecrets = Field(default=(), description=_SECRETS_RULE)
    """Secrets by prefix; those of the empty prefix are for all prefixes without their own. `webhook_keys` picks."""
    hook_secrets: values.PrefixedSecrets = Field(default=(), description=_SECRETS_RULE)
    """As `webhook_secrets`, for hooks and alarms. Callers choose what web hooks say, so the same secrets would let them
    forge an alarm."""
    webhook_allow: Annotated[tuple[str, ...], values.from_text(values.places)] = Field(
        default=(), description=values.PLACES_RULE
    )
    webhook_deny: Annotated[tuple[str, ...], values.from_text(values.places)] = Field(
        default=(), description=values.PLACES_RULE
    )
    webhook_4xx: Literal["fail", "retry"] = Field(default="fail", description="fail or retry")
    """What a 4xx answer other than 408, 410, 425 and 429 to a web hook means."""
    smtp_url: Annotated[SecretStr, values.checked(values.check_smtp_url)] | None = Field(
        default=None,
        description="smtp://user:password@host:587, optionally with ?starttls=require, if-offered or never; "
        "or smtps://…",
    )
    mail_from: Annotated[str, values.checked(values.check_mail_from)] | None = Field(
        default=None, description="an address such as shop@example.org or Shop <shop@example.org>"
    )
    sms_url: Annotated[SecretStr, values.checked(values.check_url)] | None = Field(
        default=None, description="a URL such as https://gateway.example.org/messages"
    )
    user_url: Annotated[SecretStr, values.checked(values.check_user_url)] | None = Field(
        default=None, description="a URL with {user} in its path, such as https://example.org/users/{user}"
    )
    templates: DirectoryPath | None = Field(default=None, description="an existing folder")
    insecure: bool = Field(default=False, description="1 or 0")
    log_format: Literal["console", "json"] | None = Field(default=None, description="console or json")
    """None: console on a terminal, else json."""
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], values.from_text(str.lower)] = Field(
        default="info", description="debug, info, warning, error or critical"
    )
    data_dir: Path = Field(default=Path(".timers"), description="a folder")
    outbox: Path | None = Field(default=None, description="a folder")
    """Where messages for which there is no gateway are written; None: they fail. `timers dev` sets it."""
    server_binary: Path | None = Field(default=None, description="the path of a redis-server or valkey-server binary")
    pod: str = Field(
        default_factory=_pod_name,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$",
        description="a name of up to 100 letters, digits, '_', '.' and '-'",
    )

    def webhook_keys(self, prefix: str) -> list[bytes]:
        """The keys that sign a prefix's webhooks, all at once."""
        return values.keys_of(self.webhook_secrets, prefix)

    def hook_keys(self, prefix: str) -> list[bytes]:
        """The keys that sign the calls of hooks about timers of a prefix, all at once; and alarms."""
        return values.keys_of(self.hook_secrets, prefix)

    @property
    def requested_hooks(self) -> tuple[Hook, ...]:
        """The hooks and alarms that this pod asks for."""
        hooks = [Hook.of(asked, url.get_secret_value()) for asked, url in self.hooks]
        return (*hooks, *(Hook.alarm(target.get_secret_value()) for target in self.alarms))

    @property
    def loaded(self) -> tuple[str, ...] | None:
        """The built-in processors to load; hooks and alarms go out, and targets are called, whatever TIMERS_BUILTIN
        says."""
        needed = [name for name, asked in ((HOOK, self.requested_hooks), (WEBHOOK, self.webhook_targets)) if asked]
        return None if self.builtin is None else (*self.builtin, *needed)

    @property
    def served(self) -> tuple[str, ...]:
        """The prefixes to run; hooks and alarms go out whatever TIMERS_PREFIXES says."""
        return (*self.prefixes, *(hook.prefix for hook in self.requested_hooks)) if self.prefixes else ()

    @property
    def ledger(self) -> str | None:
        """The URL of the ledger, with its password."""
        return None if self.ledger_url is None else self.ledger_url.get_secret_value()

    @property
    def redacted_redis_url(self) -> str | None:
        return values.redacted(self.redis_url) if self.redis_url else None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.shards and self.shard_subset and self.shard_subset[-1] >= self.shards:
            raise InvalidInput.of(
                "shard_subset", self.shard_subset[-1], f"numbers below {self.shards}, which is TIMERS_SHARDS"
            )
        if self.durability == "ledger" and self.ledger_url is None:
            rule = "fast, fsync or replicated, because TIMERS_LEDGER_URL is not set"
            raise InvalidInput.of("durability", self.durability, rule)
        if self.smtp_url is not None and self.mail_from is None:
            raise InvalidInput.of("mail_from", None, "an address, because TIMERS_SMTP_URL is set")
        if "api" in self.roles and self.probe_port == self.http_port != 0:
            raise InvalidInput.of("probe_port", self.probe_port, "another port than TIMERS_HTTP_PORT, or 0")
        self._share_no_secrets()
        guarded = self.api_keys or self.signing_secrets or self.insecure or _is_loopback(self.http_host)
        if "api" in self.roles and not guarded:
            raise InvalidInput.of(
                "http_host",
                self.http_host,
                "127.0.0.1, because neither TIMERS_API_KEYS nor TIMERS_SIGNING_SECRETS is set; "
                "TIMERS_INSECURE=1 opens the API to everyone who can reach it",
            )
        return self

    def _share_no_secrets(self) -> None:
        given = {
            "signing_secrets": self.signing_secrets,
            "webhook_secrets": [secret for _, secret in self.webhook_secrets],
            "hook_secrets": [secret for _, secret in self.hook_secrets],
        }
        keys = {name: {values.signing_key(each.get_secret_value()) for each in some} for name, some in given.items()}
        for one, other in combinations(keys, 2):
            if keys[one] & keys[other]:
                rule = f"secrets that are not in {_setting_name(one)}"
                raise InvalidInput([FieldError(other, "the given value", rule)])

    def length(self, field: str) -> str:
        """A setting that holds a length, as a person would write it."""
        ms: int | None = getattr(self, field)
        return _LENGTHLESS[field] if ms is None else str(Duration.of_ms(ms))

    @property
    def fleet_wide(self) -> dict[str, str]:
        """The settings that should be the same on all pods that use them, by name, with the outbox if messages may go
        there."""
        of_workers = ("lease_ms", "retention_failed_ms", "adopt_every_ms") if "worker" in self.roles else ()
        fields = ("retention_ms", "edit_lock_ms", *of_workers)
        reported = {_setting_name(field): self.length(field) for field in fields}
        reported[_setting_name("ledger_url")] = "none" if self.ledger_url is None else "set"
        reported[_setting_name("durability")] = self.durability or ("fast" if self.ledger_url is None else "ledger")
        if self.outbox is not None and None in (self.smtp_url, self.sms_url):
            reported[_setting_name("outbox")] = str(self.outbox)
        return reported


_LENGTHLESS: Final = {"retention_failed_ms": "forever", "adopt_every_ms": "off"}
"""The word for None in the settings that hold a length."""

_FIELDS: Final = {_setting_name(field): field for field in Settings.model_fields}
SETTING_NAMES: Final = tuple(_FIELDS)
SECRET_NAMES: Final = tuple(map(_setting_name, _CONFIDENTIAL))
"""The settings that hold a secret: each can be given as `NAME_FILE` instead."""


def service_links(environ: Mapping[str, str]) -> list[str]:
    """The names of the variables that are Kubernetes' service links; `load_settings` ignores them."""
    return [name for name, value in environ.items() if _SERVICE_LINK.fullmatch(f"{name}={value}")]


def load_settings(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")) -> Settings:
    """The settings of this process: from `environ` (None: the process's own), then `env_file`, then the defaults.

    An empty value counts as not set. A command line option for a setting goes into a copy of the environment, so that
    it is checked the same way. Raises ConfigurationError: one line that names each bad setting, its value unless it is
    confidential, and what would be accepted.
    """
    environment, file, _ = _sources(environ, env_file)
    given = {**file, **environment}
    try:
        return Settings.model_validate({name: given[name] for name in SETTING_NAMES if given.get(name) is not None})
    except ValidationError as error:
        # The cause is dropped, because it holds the values.
        raise ConfigurationError("; ".join(dict.fromkeys(_complaints(error, given)))) from None


def setting_origins(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")) -> dict[str, str]:
    """Where `load_settings` takes each setting from, by its name: `environment`, the path of `.env` or of a file
    with a secret, or `default`."""
    environment, file, paths = _sources(environ, env_file)
    in_file = {name: str(env_file) for name, value in file.items() if value is not None}
    origins = {**in_file, **dict.fromkeys(environment, "environment"), **paths}
    return {name: origins.get(name, "default") for name in SETTING_NAMES}


_Given = Mapping[str, str | None]
"""Values by name; None for a name of another program's in `.env` without a `=`."""


def _sources(environ: Mapping[str, str] | None, env_file: Path) -> tuple[_Given, _Given, Mapping[str, str]]:
    """What the environment and the file give, with the secrets that are given as `NAME_FILE`, and the paths of those
    that count. Raises ConfigurationError, also for an unknown name."""
    given = os.environ if environ is None else environ
    links = service_links(given)
    written = _written(env_file)
    _refuse_unknown((*written, *(name for name in given if name not in links)))
    _refuse_undecodable(given)
    environment, paths = values.with_secrets({n: v for n, v in given.items() if v and n not in links}, SECRET_NAMES)
    file, in_file = values.with_secrets({n: v for n, v in written.items() if v != ""}, SECRET_NAMES)
    return environment, file, {**{n: path for n, path in in_file.items() if n not in environment}, **paths}


def _written(env_file: Path) -> _Given:
    """What the file says. Raises ConfigurationError if it cannot be read, or for a line that says nothing."""
    try:
        text = env_file.read_text("utf-8")
    except (FileNotFoundError, IsADirectoryError):  # such a folder may be a virtual environment
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{env_file} cannot be read: {error}") from None
    for binding in parse_stream(StringIO(text)):
        is_empty = binding.value is None and (binding.key or "").startswith(_NAME_PREFIX)
        if binding.error or is_empty:  # the line is not shown, because it may hold a secret
            above = len(binding.original.string) - len(binding.original.string.lstrip())
            line = binding.original.line + binding.original.string.count("\n", 0, above)
            raise ConfigurationError(f"{env_file}: line {line} cannot be read; expected NAME=value or # and a comment")
    return dotenv_values(stream=StringIO(text))


def load_worker_settings(**options: str) -> Settings:
    """The settings of this process as a worker, because the rules for the API do not apply to a command or a processor.
    `options` override the environment."""
    return load_settings({**os.environ, "TIMERS_ROLES": "worker", **options})


def _refuse_unknown(names: Iterable[str]) -> None:
    for name in names:
        if name.startswith(_NAME_PREFIX) and name not in _FIELDS and name.removesuffix("_FILE") not in SECRET_NAMES:
            # Compared without the part that all names share, which would make every name look close.
            rests = [known.removeprefix(_NAME_PREFIX) for known in SETTING_NAMES]
            close = difflib.get_close_matches(name.removeprefix(_NAME_PREFIX), rests, n=1)
            hint = (
                f"did you mean {_NAME_PREFIX}{close[0]}?" if close else f"the settings are {', '.join(SETTING_NAMES)}"
            )
            raise ConfigurationError(f"{shown(name)} is not a setting; {hint}")


def _refuse_undecodable(given: Mapping[str, str]) -> None:
    """Bytes that are not UTF-8 come as lone surrogates, which nothing could write, send or show."""
    for name, value in given.items():
        if name.startswith(_NAME_PREFIX) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigurationError(f"{name}: the given value is not accepted; expected UTF-8 text") from None


def _complaints(error: ValidationError, given: Mapping[str, str | None]) -> Iterable[str]:
    for item in error.errors(include_url=False, include_input=False):
        if not item["loc"]:
            found: InvalidInput = item["ctx"]["error"]
            yield from (str(FieldError(_setting_name(e.field), e.value, e.accepted)) for e in found.errors)
            continue
        name = str(item["loc"][0])
        if name in given:  # a default that depends on a refused value is not reported
            field = _FIELDS[name]
            value = "the given value" if field in _CONFIDENTIAL else shown(given[name])
            yield str(FieldError(name, value, Settings.model_fields[field].description or ""))
