"""`timers config`, and `--url`."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import CommandLine
from timers.embedded import EmbeddedServer

SECRETS = {
    "TIMERS_REDIS_URL": "redis://shop:hidden-one@127.0.0.1:6379/5?ssl_password=hidden-two",
    "TIMERS_SMTP_URL": "smtp://shop:hidden-three@127.0.0.1:587",
    "TIMERS_MAIL_FROM": "shop@example.org",
    "TIMERS_SMS_URL": "https://hidden-four@example.org/",
    "TIMERS_USER_URL": "https://hidden-five@example.org/{user}",
    "TIMERS_WEBHOOK_TARGETS": "trial=https://example.org/hidden-six",
    "TIMERS_WEBHOOK_SECRETS": "trial=whsec_aGlkZGVuLXNldmVuLWhpZGRlbi1zZXZlbg==",
    "TIMERS_HOOK_SECRETS": "trial=whsec_aGlkZGVuLW5pbmUtaGlkZGVuLW5pbmUtaGlkZGVu",
    "TIMERS_SIGNING_SECRETS": "whsec_aGlkZGVuLWVpZ2h0LWhpZGRlbi1laWdodA==",
}


def settings_of(timers: CommandLine) -> dict[str, tuple[Any, str]]:
    shown = timers("config", "-o", "json")
    assert shown.code == 0, shown
    return {row["name"]: (row["value"], row["from"]) for row in shown.json["settings"]}


def test_each_setting_says_where_it_comes_from(bare: CommandLine) -> None:
    bare.monkeypatch.setenv("TIMERS_LEASE", "45s")
    Path(".env").write_text("TIMERS_LEASE=1m\nTIMERS_CONCURRENCY=7\nTIMERS_SHARDS=\n")
    settings = settings_of(bare)
    assert settings["TIMERS_LEASE"] == ("45s", "environment")
    assert settings["TIMERS_CONCURRENCY"] == ("7", ".env")
    assert settings["TIMERS_SHARDS"] == (None, "default")
    assert settings["TIMERS_RETENTION"] == ("14d", "default")
    assert settings["TIMERS_ROLES"] == ("api,worker", "default")
    assert settings["TIMERS_BUILTIN"] == ("all", "default")


def test_the_durability_in_effect_is_shown(bare: CommandLine) -> None:
    assert settings_of(bare)["TIMERS_DURABILITY"] == ("fast", "default")
    bare.monkeypatch.setenv("TIMERS_LEDGER_URL", "sqlite+aiosqlite:///ledger.db")
    assert settings_of(bare)["TIMERS_DURABILITY"] == ("ledger", "default")
    bare.monkeypatch.setenv("TIMERS_DURABILITY", "fsync")
    assert settings_of(bare)["TIMERS_DURABILITY"] == ("fsync", "environment")


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_no_secret_is_shown(bare: CommandLine, form: str) -> None:
    for name, value in SECRETS.items():
        bare.monkeypatch.setenv(name, value)
    shown = bare("config", "-o", form)
    assert shown.code == 0
    for secret in ("hidden", "aGlkZGVu"):
        assert secret not in shown.out + shown.err
    assert "trial=***" in shown.out
    assert "redis://shop:***@127.0.0.1:6379/5" in shown.out


def test_a_url_on_the_command_line_overrides_the_environment(bare: CommandLine) -> None:
    bare.monkeypatch.setenv("TIMERS_REDIS_URL", "redis://127.0.0.1:1/0")
    shown = bare("config", "--url", "redis://127.0.0.1:2/0", "-o", "json").json["settings"][0]
    assert shown == {"name": "TIMERS_REDIS_URL", "value": "redis://127.0.0.1:2/0", "from": "--url"}


def test_a_url_on_the_command_line_overrides_a_file_with_a_url(bare: CommandLine) -> None:
    Path("url").write_text("redis://127.0.0.1:1/0\n")
    bare.monkeypatch.setenv("TIMERS_REDIS_URL_FILE", "url")
    bare.monkeypatch.delenv("TIMERS_REDIS_URL", raising=False)
    assert settings_of(bare)["TIMERS_REDIS_URL"] == ("redis://127.0.0.1:1/0", "url")
    shown = bare("config", "--url", "redis://127.0.0.1:2/0", "-o", "json").json["settings"][0]
    assert shown == {"name": "TIMERS_REDIS_URL", "value": "redis://127.0.0.1:2/0", "from": "--url"}


@pytest.mark.parametrize(
    "command",
    [("--url", "{}", "ls"), ("ls", "--url", "{}"), ("prefixes", "--url", "{}"), ("keys", "ls", "--url", "{}")],
)
def test_every_command_takes_a_url(timers: CommandLine, server: EmbeddedServer, command: tuple[str, ...]) -> None:
    timers.monkeypatch.setenv("TIMERS_REDIS_URL", "redis://127.0.0.1:1/0")
    shown = timers(*(part.format(server.url) for part in command))
    assert (shown.code, shown.err) == (0, "")


def test_an_empty_url_is_refused_instead_of_meaning_another_server(bare: CommandLine) -> None:
    """For example `--url "$UNSET"`: it reached the server of a running `timers dev`."""
    ended = bare("ls", "--url", "")
    assert (ended.code, "it is empty" in ended.err) == (2, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://shop:hidden@127.0.0.1/",
        "redis:/shop:hidden@127.0.0.1:6379/5",
        "redis:shop:hidden@127.0.0.1",
        "shop:hidden@127.0.0.1:6379",
        "redis://shop:hidden",
        "rediss://:hidden",
    ],
)
def test_a_bad_url_is_reported_without_its_password(bare: CommandLine, url: str) -> None:
    fine = "redis://127.0.0.1:1"
    for words, name in (
        (("ls", "--url", url), "--url"),
        (("copy", url, fine), "FROM_URL"),
        (("copy", fine, url), "TO_URL"),
        (("copy", url, "--abort"), "FROM_URL"),
    ):
        told = bare(*words).refusal(2)
        assert told.startswith(f"timers: {name}: the given value is not accepted; expected a URL")
        assert "hidden" not in told


def test_a_url_that_an_abort_does_not_take_is_not_shown(bare: CommandLine) -> None:
    told = bare("copy", "redis://127.0.0.1:1", "redis://:hidden@127.0.0.1:2", "--abort").refusal(2)
    assert told == "timers: --abort: 'TO_URL' is not accepted; expected FROM_URL alone"


def test_the_processors_are_shown_with_where_they_were_found(bare: CommandLine) -> None:
    Path("mine_for_config.py").write_text(
        "from timers import Context, Timer, processor\n"
        "@processor('log')\nasync def other_log(timer: Timer, context: Context) -> None: ...\n"
    )
    bare.monkeypatch.syspath_prepend(".")
    bare.monkeypatch.setenv("TIMERS_PROCESSORS", "mine_for_config")
    found = {row["prefix"]: row for row in bare("config", "-o", "json").json["processors"]}
    assert found["log"] == {
        "prefix": "log",
        "function": "mine_for_config:other_log",
        "from": "TIMERS_PROCESSORS=mine_for_config",
    }
    assert found["webhook"]["from"] == "built in"


def test_settings_are_shown_also_where_a_processor_cannot_be_loaded(bare: CommandLine) -> None:
    bare.monkeypatch.setenv("TIMERS_PROCESSORS", "is_not_there")
    shown = bare("config")
    assert shown.code == 1
    assert "TIMERS_LEASE" in shown.out
    assert "is_not_there" in shown.err.splitlines()[-1]


@pytest.mark.parametrize("command", [["config"], ["serve"]])
def test_a_working_directory_that_was_deleted_is_named(bare: CommandLine, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    bare.monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    bare.monkeypatch.setenv("TIMERS_REDIS_URL", "redis://127.0.0.1:1/0")
    told = bare(*command)
    said = "timers: the working directory cannot be used: No such file or directory; start in a folder that exists"
    assert (told.code, told.err.splitlines()) == (1, [said])
