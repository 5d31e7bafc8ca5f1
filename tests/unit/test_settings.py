"""Every setting: its default, what it accepts, and the one-line error for all else, which shows no secret."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.environ import NO_FILE, SECRET, load, refusal
from timers.settings import SETTING_NAMES, Settings, load_settings, service_links


def test_the_names_are_those_of_the_public_contract() -> None:
    assert {name.removeprefix("TIMERS_") for name in SETTING_NAMES} == {
        *(
            "REDIS_URL",
            "LEDGER_URL",
            "DURABILITY",
            "ROLES",
            "HTTP_HOST",
            "HTTP_PORT",
            "PROBE_PORT",
            "PROCESSORS",
            "BUILTIN",
            "PREFIXES",
        ),
        *("SHARDS", "SHARD_SUBSET", "FORMAT"),
        *(
            "CONCURRENCY",
            "LEASE",
            "RETENTION",
            "RETENTION_FAILED",
            "EDIT_LOCK",
            "DRAIN_TIMEOUT",
            "START_TIMEOUT",
            "ADOPT_EVERY",
        ),
        *("WEBHOOK_TARGETS", "WEBHOOK_SECRETS", "HOOK_SECRETS", "WEBHOOK_ALLOW", "WEBHOOK_DENY", "WEBHOOK_4XX"),
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
        "ledger_url": None,
        "durability": None,
        "roles": frozenset({"api", "worker"}),
        "http_host": "127.0.0.1",
        "http_port": 8080,
        "probe_port": None,
        "processors": (),
        "builtin": None,
        "prefixes": (),
        "shards": None,
        "shard_subset": (),
        "format": None,
        "concurrency": 1000,
        "lease_ms": 10_000,
        "retention_ms": 14 * 86_400_000,
        "retention_failed_ms": None,
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
        "hook_secrets": (),
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
        "outbox": None,
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
    assert (settings.data_dir, settings.outbox) == (Path("/srv/timers"), None)
    assert settings.insecure


def test_bare_keys_are_switched_off_by_a_word() -> None:
    assert load_settings({"TIMERS_ADOPT_EVERY": "off"}, NO_FILE).adopt_every_ms is None


def test_failed_timers_may_be_kept_for_ever_for_a_time_or_not_at_all() -> None:
    for given, ms in (("forever", None), ("Forever", None), ("30d", 30 * 86_400_000), ("0", 0)):
        settings = load_settings({"TIMERS_RETENTION_FAILED": given}, NO_FILE)
        assert settings.retention_failed_ms == ms
    assert load().fleet_wide["TIMERS_RETENTION_FAILED"] == "forever"


def test_a_pod_without_a_worker_does_not_tell_what_only_workers_use() -> None:
    told = load_settings({"TIMERS_ROLES": "api"}, NO_FILE).fleet_wide
    assert set(load().fleet_wide) - set(told) == {"TIMERS_LEASE", "TIMERS_RETENTION_FAILED", "TIMERS_ADOPT_EVERY"}


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
        ("FORMAT", "0", "a number of a record format"),
        ("SHARDS", "1025", "from 1 to 1024"),
        ("SHARD_SUBSET", "3-1", "0-15,20"),
        ("SHARD_SUBSET", "1024", "0-15,20"),
        ("SHARD_SUBSET", "all", "0-15,20"),
        ("SHARD_SUBSET", "1,,2", "0-15,20"),
        ("CONCURRENCY", "0", "a whole number from 1"),
        ("CONCURRENCY", "1.5", "a whole number from 1"),
        ("LEASE", "soon", "a duration such as 250ms"),
        ("LEASE", "0", "from 100ms to 1d"),
        ("RETENTION", "-1s", "a duration such as 250ms"),
        ("RETENTION", "1 month", "a duration such as 250ms"),
        ("RETENTION", "P11Y", ", at most 3653d"),
        ("RETENTION_FAILED", "P11Y", ", at most 3653d, or forever"),
        ("EDIT_LOCK", "nan", "a duration such as 250ms"),
        ("ADOPT_EVERY", "0s", "from 10ms to 3653d"),
        ("ADOPT_EVERY", "never", ", or off"),
        ("RETENTION_FAILED", "never", ", or forever"),
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


@pytest.mark.parametrize("name", ["SIGNING_SECRETS", "REDIS_URL", "DATA_DIR", "POD"])
def test_bytes_that_are_no_text_are_refused_unseen(name: str) -> None:
    assert refusal(**{name: os.fsdecode(b"secret\xff")}) == (
        f"TIMERS_{name}: the given value is not accepted; expected UTF-8 text"
    )


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


def test_the_probe_port_is_none_of_the_apis() -> None:
    rule = "expected another port than TIMERS_HTTP_PORT, or 0"
    assert refusal(HTTP_PORT="81", PROBE_PORT="81") == f"TIMERS_PROBE_PORT: 81 is not accepted; {rule}"
    assert refusal(PROBE_PORT="8080").startswith("TIMERS_PROBE_PORT: 8080 ")
    assert load(HTTP_PORT="0", PROBE_PORT="0").probe_port == 0
    assert load(HTTP_PORT="81", PROBE_PORT="81", ROLES="worker").probe_port == 81


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:///ledger.db",
        "sqlite+aiosqlite:////var/lib/ledger.db",
        "postgresql+asyncpg://me:sword@host/db",
        "postgresql+psycopg:///db?host=/run/postgresql",
    ],
)
def test_a_ledger_is_a_database_with_a_driver_that_is_shown_nowhere(url: str) -> None:
    settings = load(LEDGER_URL=url, DURABILITY="fast")
    assert (settings.ledger, settings.durability) == (url, "fast")
    assert url not in repr(settings)
    assert load(LEDGER_URL="").ledger is None


@pytest.mark.parametrize(
    "bad", ["ledger.db", "postgresql://me:hidden@host/db", "postgresql+asyncpg://me:hidden@host", "sqlite+aiosqlite://"]
)
def test_another_database_is_refused_unseen(bad: str) -> None:
    line = refusal(LEDGER_URL=bad)
    assert line.startswith("TIMERS_LEDGER_URL: the given value is not accepted; expected postgresql+asyncpg://")
    assert "hidden" not in line


def test_signing_secrets_may_be_several_for_rotation() -> None:
    given = load(SIGNING_SECRETS=f"{SECRET}, {SECRET}").signing_secrets
    assert [secret.get_secret_value() for secret in given] == [SECRET, SECRET]


@pytest.mark.parametrize("bad", ["sword", "whsec_sword", "whsec_c3dvcmQ="])
def test_a_bad_signing_secret_is_refused_unseen(bad: str) -> None:
    line = refusal(SIGNING_SECRETS=f"{SECRET},{bad}")
    assert line.startswith("TIMERS_SIGNING_SECRETS: the given value")
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
    for value in ("1", ""):
        assert refusal(**{name: value}).startswith(f"'TIMERS_{name}' is not a setting; {hint}")


def test_an_empty_value_is_the_default() -> None:
    assert load(REDIS_URL="", REDIS_URL_FILE="", HTTP_PORT="").http_port == 8080


def test_other_programs_variables_are_ignored() -> None:
    assert load_settings({"PATH": "/bin", "TIMERS_HTTP_PORT": "1", "XTIMERS_Y": "z"}, NO_FILE).http_port == 1


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMERS_CONCURRENCY", "3")
    (tmp_path / ".env").write_text("TIMERS_POD=from-file")
    settings = load_settings()
    assert (settings.concurrency, settings.pod) == (3, "from-file")


def test_only_the_settings_loader_reads_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_keys_secrets_insecure_or_no_api_role_allow_another_host(also: dict[str, str]) -> None:
    assert load(HTTP_HOST="0.0.0.0", **also).http_host == "0.0.0.0"


def test_a_subset_must_lie_within_the_shards() -> None:
    assert load(SHARDS="4", SHARD_SUBSET="0-3").shard_subset == (0, 1, 2, 3)
    line = refusal(SHARDS="4", SHARD_SUBSET="0-4")
    assert line == "TIMERS_SHARD_SUBSET: 4 is not accepted; expected numbers below 4, which is TIMERS_SHARDS"


def test_an_entry_that_is_no_key_is_refused_without_showing_it() -> None:
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
    # A Service `timers-http` sets this, which is the name of a setting.
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
