"""Every setting: its default, what it accepts, and the one line that refuses the rest without showing a secret."""

from base64 import b64encode
from pathlib import Path

import pytest
from pydantic import ValidationError

from timers.core.hooks import Hook
from timers.errors import ConfigurationError
from timers.settings import SETTING_NAMES, Settings, load_settings, service_links

NO_FILE = Path("no-such-env-file")
SECRET = "whsec_" + b64encode(b"0123456789abcdefghijklmnop").decode()


def load(**environ: str) -> Settings:
    return load_settings({f"TIMERS_{name}": value for name, value in environ.items()}, NO_FILE)


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(**environ)
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_names_are_those_of_the_public_contract() -> None:
    assert {name.removeprefix("TIMERS_") for name in SETTING_NAMES} == {
        *("REDIS_URL", "ROLES", "HTTP_HOST", "HTTP_PORT", "PROBE_PORT", "PROCESSORS", "BUILTIN", "PREFIXES"),
        *("SHARDS", "SHARD_SUBSET"),
        *("CONCURRENCY", "LEASE", "RETENTION", "EDIT_LOCK", "DRAIN_TIMEOUT", "START_TIMEOUT", "ADOPT_EVERY"),
        *("WEBHOOK_TARGETS", "WEBHOOK_SECRETS", "WEBHOOK_ALLOW", "WEBHOOK_DENY", "WEBHOOK_4XX"),
        *("HOOKS", "ALARMS", "PUBLIC_URL"),
        *("SMTP_URL", "MAIL_FROM", "SMS_URL", "USER_URL", "TEMPLATES"),
        *("API_KEYS", "SIGNING_SECRETS", "INSECURE", "LOG_FORMAT", "LOG_LEVEL"),
        *("DATA_DIR", "OUTBOX", "SERVER_BINARY", "POD"),
    }


def test_defaults() -> None:
    settings = load()
    pod, given = settings.pod, settings.model_dump(exclude={"pod"})
    assert pod
    assert given == {
        "redis_url": None,
        "roles": frozenset({"api", "worker"}),
        "http_host": "127.0.0.1",
        "http_port": 8080,
        "probe_port": None,
        "processors": (),
        "builtin": None,
        "prefixes": (),
        "shards": None,
        "shard_subset": (),
        "concurrency": 1000,
        "lease_ms": 30_000,
        "retention_ms": 14 * 86_400_000,
        "edit_lock_ms": 0,
        "drain_timeout_ms": 25_000,
        "start_timeout_ms": 30_000,
        "adopt_every_ms": 10_000,
        "api_keys": None,
        "signing_secrets": (),
        "webhook_targets": (),
        "hooks": (),
        "alarms": (),
        "public_url": None,
        "webhook_secrets": (),
        "webhook_allow": (),
        "webhook_deny": (),
        "webhook_4xx": "fail",
        "smtp_url": None,
        "mail_from": None,
        "sms_url": None,
        "user_url": None,
        "templates": None,
        "insecure": False,
        "log_format": None,
        "log_level": "info",
        "data_dir": Path(".timers"),
        "outbox": Path(".timers/outbox"),
        "server_binary": None,
    }


def test_each_pod_has_its_own_name() -> None:
    assert load().pod != load().pod
    assert load(POD="pod-7").pod == "pod-7"


@pytest.mark.parametrize(
    ("given", "names"),
    [("all", None), ("none", ()), ("log, send-message", ("log", "send-message")), ("", None)],
)
def test_the_built_in_processors_are_all_none_or_some(given: str, names: tuple[str, ...] | None) -> None:
    assert load(BUILTIN=given).builtin == names


def test_values_arrive_in_their_types() -> None:
    settings = load(
        ROLES="worker",
        HTTP_PORT="0",
        PROCESSORS="shop.timers, shop.mail:send",
        PREFIXES="send-message,web.hook",
        SHARDS="32",
        SHARD_SUBSET="0-3, 20,2",
        CONCURRENCY="5",
        LEASE="90s",
        RETENTION="0",
        EDIT_LOCK="2m",
        DRAIN_TIMEOUT="0.5",
        ADOPT_EVERY="250ms",
        LOG_LEVEL="WARNING",
        DATA_DIR="/srv/timers",
        INSECURE="1",
    )
    assert settings.roles == {"worker"}
    assert settings.http_port == 0
    assert settings.processors == ("shop.timers", "shop.mail:send")
    assert settings.prefixes == ("send-message", "web.hook")
    assert settings.shards == 32
    assert settings.shard_subset == (0, 1, 2, 3, 20)
    assert settings.concurrency == 5
    assert (settings.lease_ms, settings.retention_ms, settings.edit_lock_ms) == (90_000, 0, 120_000)
    assert (settings.adopt_every_ms, settings.drain_timeout_ms) == (250, 500)
    assert settings.log_level == "warning"
    assert settings.outbox == Path("/srv/timers/outbox")
    assert settings.insecure


def test_bare_keys_are_switched_off_by_a_word() -> None:
    assert load_settings({"TIMERS_ADOPT_EVERY": "off"}, NO_FILE).adopt_every_ms is None


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("ROLES", "api,boss", "api, worker"),
        ("ROLES", ",", "api, worker"),
        ("HTTP_HOST", "a b", "address or name"),
        ("HTTP_PORT", "65536", "a port from 0"),
        ("HTTP_PORT", "http", "a port from 0"),
        ("PROBE_PORT", "-1", "a port from 0"),
        ("PROCESSORS", "shop/timers.py", "package.module:object"),
        ("PREFIXES", "send-message,Wrong", "a prefix like"),
        ("PREFIXES", "timers", "a prefix like"),
        ("BUILTIN", "all,log", "all, none, or comma-separated names of built-in processors"),
        ("SHARDS", "0", "from 1 to 1024"),
        ("SHARDS", "1025", "from 1 to 1024"),
        ("SHARD_SUBSET", "3-1", "0-15,20"),
        ("SHARD_SUBSET", "1024", "0-15,20"),
        ("SHARD_SUBSET", "all", "0-15,20"),
        ("SHARD_SUBSET", "1,,2", "0-15,20"),
        ("CONCURRENCY", "0", "a whole number from 1"),
        ("CONCURRENCY", "1.5", "a whole number from 1"),
        ("LEASE", "soon", "a duration like 250ms"),
        ("LEASE", "0", "from 100 ms"),
        ("RETENTION", "-1s", "a duration like 250ms"),
        ("RETENTION", "1 month", "a duration like 250ms"),
        ("EDIT_LOCK", "nan", "a duration like 250ms"),
        ("ADOPT_EVERY", "0s", "from 10 ms"),
        ("ADOPT_EVERY", "never", ", or off"),
        ("INSECURE", "maybe", "1 or 0"),
        ("LOG_FORMAT", "xml", "console or json"),
        ("LOG_LEVEL", "loud", "debug, info"),
        ("POD", "pod 7", "a name of up to 100"),
    ],
)
def test_an_impossible_value_is_refused_with_name_value_and_rule(name: str, value: str, accepted: str) -> None:
    line = refusal(**{name: value})
    assert line.startswith(f"TIMERS_{name}: {value!r} is not accepted; expected ")
    assert accepted in line


def test_all_bad_settings_are_named_at_once() -> None:
    line = refusal(HTTP_PORT="x", LEASE="y")
    assert "TIMERS_HTTP_PORT" in line
    assert "TIMERS_LEASE" in line


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/5",
        "redis://localhost",
        "redis://[::1]:6379/0",
        "rediss://user:pass@redis.example:6380/1?ssl_cert_reqs=required",
        "unix:///run/redis.sock?db=3",
        "redis+sentinel://:pass@one:26379,two:26379/mymaster/2",
        "redis+cluster://one:7000,two:7001",
    ],
)
def test_redis_urls_that_are_accepted(url: str) -> None:
    assert load(REDIS_URL=url).redis_url == url


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://localhost:6379",
        "redis://",
        "redis://localhost:port",
        "redis://localhost:0",
        "redis://localhost/five",
        "redis://one,two/0",
        "redis+sentinel://one:26379",
        "unix://",
        "redis://user:pa/sword@localhost/0",
        "redis://1:2/sword@localhost/0",
        "redis://localhost/0#sword",
    ],
)
def test_redis_urls_that_are_refused(url: str) -> None:
    line = refusal(REDIS_URL=url)
    assert line.startswith("TIMERS_REDIS_URL: the given value is not accepted; expected ")
    assert "redis+sentinel://" in line
    assert "sword" not in line


@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///ledger.db", "postgresql+asyncpg://me:sword@host/db"])
def test_a_ledger_is_refused_because_none_would_be_kept(url: str) -> None:
    assert refusal(LEDGER_URL=url) == "TIMERS_LEDGER_URL is not supported by this version; leave it out"
    assert load(LEDGER_URL="").roles


def test_a_ledger_in_the_file_is_refused_too(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_LEDGER_URL=sqlite+aiosqlite:///ledger.db\n")
    assert refused_in(file, {}) == "TIMERS_LEDGER_URL is not supported by this version; leave it out"
    file.write_text("TIMERS_LEDGER_URL=\n")
    assert load_settings({}, file).roles


def test_signing_secrets_may_be_several_for_rotation() -> None:
    given = load(SIGNING_SECRETS=f"{SECRET}, {SECRET}").signing_secrets
    assert [secret.get_secret_value() for secret in given] == [SECRET, SECRET]


@pytest.mark.parametrize("bad", ["sword", "whsec_sword", "whsec_c3dvcmQ="])
def test_a_bad_signing_secret_is_refused_unseen(bad: str) -> None:
    line = refusal(SIGNING_SECRETS=f"{SECRET},{bad}")
    assert line.startswith("TIMERS_SIGNING_SECRETS: the given value")
    assert bad not in line
    assert SECRET not in line


def test_secrets_are_shown_nowhere() -> None:
    settings = load(
        REDIS_URL="rediss://user:hi@d@host:1/0?ssl_password=hid&db=0",
        API_KEYS=f"k1:{'0123456789abcdef' * 4}:*:read",
        SIGNING_SECRETS=SECRET,
    )
    shown = f"{settings!r} {settings} {settings.redacted_redis_url}"
    assert "hi" not in shown
    assert SECRET not in shown
    assert "0123456789abcdef" not in shown
    assert settings.redacted_redis_url == "rediss://user:***@host:1/0?ssl_password=***&db=0"
    assert load().redacted_redis_url is None


def test_errors_of_a_direct_construction_hide_the_values_too() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(redis_url="http://user:sword@host")
    assert "sword" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("REDIS_ULR", "did you mean TIMERS_REDIS_URL?"),
        ("LEASE_MS", "did you mean TIMERS_LEASE?"),
        ("lease_ms", "the settings are TIMERS_REDIS_URL, "),
        ("SWEEP_EVERY", "did you mean TIMERS_ADOPT_EVERY?"),
        ("XYZZY", "the settings are TIMERS_REDIS_URL, "),
    ],
)
def test_an_unknown_name_is_refused(name: str, hint: str) -> None:
    assert refusal(**{name: "1"}).startswith(f"'TIMERS_{name}' is not a setting; {hint}")


def test_an_empty_value_is_the_default() -> None:
    assert load(REDIS_URL="", HTTP_PORT="").http_port == 8080


def test_other_programs_variables_are_ignored() -> None:
    assert load_settings({"PATH": "/bin", "TIMERS_HTTP_PORT": "1", "XTIMERS_Y": "z"}, NO_FILE).http_port == 1


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# comment\nTIMERS_HTTP_PORT=1\nTIMERS_CONCURRENCY='7'\nOTHER=x\nTIMERS_POD=$1\n")
    assert (
        refused_in(file, {})
        == "TIMERS_POD: '$1' is not accepted; expected a name of up to 100 letters, digits, '_', '.' and '-'"
    )
    settings = load_settings({"TIMERS_HTTP_PORT": "2", "TIMERS_POD": "p"}, file)
    assert (settings.http_port, settings.concurrency) == (2, 7)


def test_an_empty_value_leaves_it_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_HTTP_PORT=1\nTIMERS_CONCURRENCY=\nTIMERS_POD\n")
    settings = load_settings({"TIMERS_HTTP_PORT": ""}, file)
    assert (settings.http_port, settings.concurrency) == (1, 1000)


def test_lists_in_the_file_have_commas_too(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_ROLES=worker\nTIMERS_PREFIXES=a,b\nTIMERS_SHARD_SUBSET=0-2,5\n")
    settings = load_settings({}, file)
    assert settings.roles == {"worker"}
    assert (settings.prefixes, settings.shard_subset) == (("a", "b"), (0, 1, 2, 5))


def test_the_file_may_refer_to_variables_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_POD=pod-${ORDINAL}\nTIMERS_DATA_DIR=a$b$c=19\n")
    monkeypatch.setenv("ORDINAL", "7")
    settings = load_settings({}, file)
    assert settings.pod == "pod-7"
    assert settings.data_dir == Path("a$b$c=19")


def refused_in(file: Path, environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ, file)
    return str(caught.value)


def test_the_file_is_checked_for_unknown_names(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_HTTP_PROT=1\n")
    assert "did you mean TIMERS_HTTP_PORT?" in refused_in(file, {})


def test_an_undecodable_file_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"TIMERS_POD=\xff\n")
    assert refused_in(file, {}).startswith(f"{file} cannot be read: ")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMERS_CONCURRENCY", "3")
    (tmp_path / ".env").write_text("TIMERS_POD=from-file")
    settings = load_settings()
    assert (settings.concurrency, settings.pod) == (3, "from-file")


def test_only_the_loader_reads_the_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMERS_CONCURRENCY", "3")
    (tmp_path / ".env").write_text("TIMERS_HTTP_PORT=1")
    settings = Settings(lease_ms=500)
    assert (settings.concurrency, settings.http_port, settings.lease_ms) == (1000, 8080, 500)


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().http_port = 1  # type: ignore[misc]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_an_open_api_may_listen_on_loopback(host: str) -> None:
    assert load(HTTP_HOST=host).http_host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "timers.example"])
def test_an_open_api_may_not_listen_elsewhere(host: str) -> None:
    line = refusal(HTTP_HOST=host)
    assert line.startswith(f"TIMERS_HTTP_HOST: {host!r} is not accepted; expected 127.0.0.1")
    assert "TIMERS_API_KEYS" in line
    assert "TIMERS_INSECURE=1" in line


@pytest.mark.parametrize(
    "also", [{"API_KEYS": "stored"}, {"SIGNING_SECRETS": SECRET}, {"INSECURE": "1"}, {"ROLES": "worker"}]
)
def test_what_lets_the_api_listen_elsewhere(also: dict[str, str]) -> None:
    assert load(HTTP_HOST="0.0.0.0", **also).http_host == "0.0.0.0"


def test_a_subset_must_lie_within_the_shards() -> None:
    assert load(SHARDS="4", SHARD_SUBSET="0-3").shard_subset == (0, 1, 2, 3)
    line = refusal(SHARDS="4", SHARD_SUBSET="0-4")
    assert line == "TIMERS_SHARD_SUBSET: 4 is not accepted; expected numbers below 4, which is TIMERS_SHARDS"


def test_an_entry_that_is_no_key_is_refused_unshown() -> None:
    line = refusal(API_KEYS="tmk_abc_thesecretitself")
    assert line.startswith("TIMERS_API_KEYS: the given value is not accepted; expected entries as `timers keys make`")
    assert "thesecretitself" not in line


LINKS = {
    "TIMERS_SERVICE_HOST": "10.96.0.7",
    "TIMERS_SERVICE_PORT": "8080",
    "TIMERS_SERVICE_PORT_HTTP": "8080",
    "TIMERS_PORT": "tcp://10.96.0.7:8080",
    "TIMERS_PORT_8080_TCP": "tcp://10.96.0.7:8080",
    "TIMERS_PORT_8080_TCP_PROTO": "tcp",
    "TIMERS_PORT_8080_TCP_PORT": "8080",
    "TIMERS_PORT_8080_TCP_ADDR": "10.96.0.7",
    "TIMERS_API_SERVICE_HOST": "fd00::7",
    "TIMERS_API_SERVICE_PORT": "53",
    "TIMERS_API_PORT": "udp://[fd00::7]:53",
    "TIMERS_API_PORT_53_UDP_ADDR": "fd00::7",
    # Of a Service `timers-http`: the name of a setting.
    "TIMERS_HTTP_PORT": "tcp://10.96.0.8:80",
}


def test_a_service_named_timers_in_kubernetes_does_no_harm() -> None:
    settings = load_settings({**LINKS, "TIMERS_CONCURRENCY": "7"}, NO_FILE)
    assert (settings.http_port, settings.concurrency) == (8080, 7)
    assert service_links({**LINKS, "TIMERS_CONCURRENCY": "7", "TIMERS_POD": "a"}) == list(LINKS)


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "8080"), ("SERVICE_HOST", "example.org"), ("SERVICE_PORT", "http"), ("HTTP_PORT", "x")]
)
def test_what_only_looks_like_a_service_link_is_refused(name: str, value: str) -> None:
    assert refusal(**{name: value}).startswith(("'TIMERS_", "TIMERS_HTTP_PORT: 'x'"))


OTHER = "whsec_" + b64encode(b"another secret of 26 bytes").decode()


def test_a_web_hooks_keys_are_those_of_the_longest_prefix() -> None:
    settings = load(WEBHOOK_SECRETS=f"{SECRET}, partner={OTHER},partner={SECRET}")
    first, second = b"0123456789abcdefghijklmnop", b"another secret of 26 bytes"
    assert settings.webhook_keys("webhook") == settings.webhook_keys("partners") == [first]
    assert settings.webhook_keys("partner") == settings.webhook_keys("partner-x") == [second, first]


def test_web_hook_targets_and_places_arrive_in_their_types() -> None:
    settings = load(WEBHOOK_TARGETS="a=https://e.org/x?y=z,b=http://i:80", WEBHOOK_ALLOW="10.0.0.0/8, api.x,*.y,::1")
    assert [(prefix, url.get_secret_value()) for prefix, url in settings.webhook_targets] == [
        ("a", "https://e.org/x?y=z"),
        ("b", "http://i:80"),
    ]
    assert settings.webhook_allow == ("10.0.0.0/8", "api.x", "*.y", "::1")
    assert "e.org" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("WEBHOOK_TARGETS", value) for value in ("https://e.org", "a=b", "A=https://e.org", "a=ftp://e.org", "a=")],
        *[("WEBHOOK_TARGETS", value) for value in ("a=https://e.org,a=https://f.org", "a=https://e.org:0")],
        *[
            ("WEBHOOK_SECRETS", value)
            for value in ("hunter2", "a=hunter2", "whsec_", "whsec_c2hvcnQ=", f"A B={SECRET}")
        ],
        *[("WEBHOOK_ALLOW", value) for value in ("10.0.0.0/99", "10.0.0.1/8", "*.", "https://e.org", "a b")],
        *[("WEBHOOK_DENY", value) for value in ("*", "10.0.0", "e.org:443")],
        ("WEBHOOK_4XX", "maybe"),
    ],
)
def test_a_bad_setting_of_web_hooks_is_named_without_its_secrets(name: str, value: str) -> None:
    line = refusal(**{name: value})
    assert line.startswith(f"TIMERS_{name}: ")
    if name in ("WEBHOOK_TARGETS", "WEBHOOK_SECRETS"):
        assert line.startswith(f"TIMERS_{name}: the given value is not accepted")


def test_hooks_say_which_events_of_which_timers_they_are_about_and_whom_to_call() -> None:
    settings = load(
        HOOKS="failed+armed@send-*=https://e.org/x?a=b@c, all+payload@*=http://i:80, started@a=https://e.org/x?a=b@c"
    )
    first, second, third = settings.requested_hooks
    assert [(hook.letters, hook.pattern, hook.with_payload) for hook in settings.requested_hooks] == [
        ("af", "send-*", False),
        ("arctfux", "*", True),
        ("r", "a", False),
    ]
    assert first.prefix == third.prefix != second.prefix
    assert [Hook.parse(str(hook)) for hook in settings.requested_hooks] == [first, second, third]
    assert "e.org" not in repr(settings)
    assert [hook.hears("send-mail") for hook in settings.requested_hooks] == [True, True, False]


@pytest.mark.parametrize(
    "value",
    [
        *("https://e.org", "failed=https://e.org", "failed@a", "fialed@a=https://e.org", "@a=https://e.org"),
        *("payload@a=https://e.org", "failed@A=https://e.org", "failed@a*b=https://e.org", "failed@a=ftp://e.org"),
        ",".join(["failed@a=https://e.org"] * 101),
    ],
)
def test_an_invalid_hook_error_shows_a_valid_one(value: str) -> None:
    line = refusal(HOOKS=value)
    assert line.startswith("TIMERS_HOOKS: the given value is not accepted; expected event@prefix=https://host/path")
    assert "armed, started, completed, retried, failed, unhandled, cancelled" in line


def test_alarms_go_to_addresses_urls_and_commands() -> None:
    settings = load(ALARMS="mailto:ops@e.org, https://e.org/x, exec:/bin/sh")
    assert [(hook.letters, hook.pattern, hook.prefix[:13]) for hook in settings.requested_hooks] == [
        ("fu", "*", "timers.alarm-")
    ] * 3
    assert len({hook.prefix for hook in settings.requested_hooks}) == 3
    assert "e.org" not in repr(settings)


@pytest.mark.parametrize("value", ["ops@e.org", "mailto:ops", "ftp://e.org", "exec:sh", "exec:/no/such", "exec:/bin"])
def test_an_invalid_alarm_error_shows_a_valid_one(value: str) -> None:
    assert refusal(ALARMS=value) == (
        "TIMERS_ALARMS: the given value is not accepted; "
        "expected mailto:a@example.org, https://host/path or exec:/command, comma-separated, at most 100"
    )


def test_hooks_are_called_whatever_a_pod_is_limited_to() -> None:
    limited = load(HOOKS="failed@a=https://e.org", BUILTIN="none", PREFIXES="a")
    assert limited.loaded == ("timers.hook",)
    assert limited.served == ("a", limited.requested_hooks[0].prefix)
    assert load(BUILTIN="none", PREFIXES="a").served == ("a",)


def test_what_we_sign_with_must_not_open_our_own_api() -> None:
    line = refusal(WEBHOOK_SECRETS=f"a={SECRET}", SIGNING_SECRETS=SECRET)
    refused = "TIMERS_WEBHOOK_SECRETS: the given value is not accepted; "
    assert line == refused + "expected secrets that are not in TIMERS_SIGNING_SECRETS"


@pytest.mark.parametrize(
    "url",
    [
        *("smtp://mail.example.org", "smtp://shop%40x:p%3Aw@mail.example.org:587", "smtps://mail.example.org:465/"),
        *(f"smtp://h?starttls={mode}" for mode in ("require", "if-offered", "never")),
    ],
)
def test_a_mail_server_is_taken(url: str) -> None:
    settings = load(SMTP_URL=url, MAIL_FROM="Shop <shop@example.org>")
    assert settings.smtp_url is not None
    assert settings.smtp_url.get_secret_value() == url
    assert url not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("SMTP_URL", value) for value in ("mail.example.org", "smtp://", "http://h", "smtp://h/x", "smtp://h:0")],
        *[("SMTP_URL", value) for value in ("smtp://h?starttls=maybe", "smtp://h?tls=1", "smtps://h?starttls=never")],
        *[("MAIL_FROM", value) for value in ("shop", "shop@", "Shop <shop>", "a@b\nBcc: c@d")],
        *[("SMS_URL", value) for value in ("gateway.example", "ftp://gateway.example")],
        *[("USER_URL", value) for value in ("https://example.org/users", "https://{user}.example.org", "{user}")],
        ("TEMPLATES", "no/such/folder"),
    ],
)
def test_a_bad_setting_of_messages_is_named_without_its_secrets(name: str, value: str) -> None:
    line = refusal(**{"MAIL_FROM": "shop@example.org", name: value})
    assert line.startswith(f"TIMERS_{name}: ")
    if name in ("SMTP_URL", "SMS_URL", "USER_URL"):
        assert line.startswith(f"TIMERS_{name}: the given value is not accepted")


def test_mail_needs_somebody_it_is_from() -> None:
    assert refusal(SMTP_URL="smtp://u:hidden@h").startswith(
        "TIMERS_MAIL_FROM: None is not accepted; expected an address"
    )
