"""Settings for what a pod sends: web hooks, hooks, alarms and messages."""

from base64 import b64encode

import pytest

from tests.unit.environ import SECRET, load, refusal
from timers.core.hooks import Hook

OTHER = "whsec_" + b64encode(b"another secret of 26 bytes").decode()


def test_a_web_hooks_keys_are_those_of_the_longest_prefix() -> None:
    given = f"{SECRET}, partner={OTHER},partner={SECRET}"
    first, second = b"0123456789abcdefghijklmnop", b"another secret of 26 bytes"
    for keys in (load(WEBHOOK_SECRETS=given).webhook_keys, load(HOOK_SECRETS=given).hook_keys):
        assert keys("webhook") == keys("partners") == [first]
        assert keys("partner") == keys("partner-x") == [second, first]


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
        *[("WEBHOOK_TARGETS", f"a=https://e{char}.org") for char in (" ", "\\", "\u200b")],
        *[
            ("WEBHOOK_TARGETS", value)
            for value in ("a=https://e.org,a=https://f.org", "a=https://e.org:0", "timers.a=https://e.org")
        ],
        *[
            (name, value)
            for name in ("WEBHOOK_SECRETS", "HOOK_SECRETS")
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
    if name in ("WEBHOOK_TARGETS", "WEBHOOK_SECRETS", "HOOK_SECRETS"):
        assert line.startswith(f"TIMERS_{name}: the given value is not accepted")


@pytest.mark.parametrize("prefix", ["", "note", "timers", "timers.canary", "timers.hook-1\n", "timers.hook-A"])
def test_what_another_program_says_to_be_a_hook_is_none(prefix: str) -> None:
    assert Hook.parse(f"arcfux * {prefix}") is None


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
    assert [hook.covers("send-mail") for hook in settings.requested_hooks] == [True, True, False]


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


@pytest.mark.parametrize(
    "value",
    [
        "ops@e.org",
        "mailto:ops",
        "mailto://ops@e.org",
        "mailto:ops@e.org?subject=timers",
        "mailto:ops@e.org;dev@e.org",
        "ftp://e.org",
        "exec:sh",
        "exec:/no/such",
        "exec:/bin",
    ],
)
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


@pytest.mark.parametrize("name", ["WEBHOOK_SECRETS", "HOOK_SECRETS"])
def test_what_we_sign_with_must_not_open_our_own_api(name: str) -> None:
    line = refusal(**{name: f"a={SECRET}", "SIGNING_SECRETS": SECRET})
    refused = f"TIMERS_{name}: the given value is not accepted; "
    assert line == refused + "expected secrets that are not in TIMERS_SIGNING_SECRETS"


def test_what_web_hooks_are_signed_with_must_not_sign_an_alarm() -> None:
    line = refusal(WEBHOOK_SECRETS=f"a={SECRET}", HOOK_SECRETS=f"{OTHER},b={SECRET}")
    refused = "TIMERS_HOOK_SECRETS: the given value is not accepted; "
    assert line == refused + "expected secrets that are not in TIMERS_WEBHOOK_SECRETS"


@pytest.mark.parametrize(
    "url",
    [
        *("smtp://mail.example.org", "smtp://shop%40x:p%3Aw@mail.example.org:587", "smtps://mail.example.org:465/"),
        *(f"smtp://h?starttls={mode}" for mode in ("require", "if-offered", "never")),
    ],
)
def test_a_url_of_a_mail_server_is_accepted_and_not_shown(url: str) -> None:
    settings = load(SMTP_URL=url, MAIL_FROM="Shop <shop@example.org>")
    assert settings.smtp_url is not None
    assert settings.smtp_url.get_secret_value() == url
    assert url not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("SMTP_URL", value) for value in ("mail.example.org", "smtp://", "http://h", "smtp://h/x", "smtp://h:0")],
        *[("SMTP_URL", value) for value in ("smtp://h?starttls=maybe", "smtp://h?tls=1", "smtps://h?starttls=never")],
        *[
            ("MAIL_FROM", value)
            for value in ("shop", "shop@", "Shop <shop>", "a@b\nBcc: c@d", "=?utf-8?q?=0aX:y?= <a@b>")
        ],
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


def test_mail_needs_a_sender_address() -> None:
    assert refusal(SMTP_URL="smtp://u:hidden@h").startswith("TIMERS_MAIL_FROM: nothing was given; expected an address")
