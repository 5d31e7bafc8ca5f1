"""`timers keys`: shown once, kept as a hash, listed without secrets, revoked wherever they are kept."""

import hashlib
import json

import pytest
from redis import Redis

from tests.cli.commands import CommandLine
from timers.access import ApiKey, with_secret


def test_a_key_is_shown_once_and_kept_as_a_hash(timers: CommandLine, redis: Redis) -> None:
    made = timers(
        *("keys", "make", "--prefix", "orders,send-*", "--prefix", "mail"),
        *(
            "--right",
            "read",
            "--right",
            "write",
            "--name",
            "billing",
            "--rate",
            "100/s",
            "--pending",
            "5000",
            "--most-prefixes",
            "7",
            "-o",
            "json",
        ),
    )
    assert made.code == 0
    key, entry = made.json["key"], made.json["entry"]
    kept = ApiKey.parse(entry)
    assert hashlib.sha256(key.encode()).digest() == kept.digest
    assert kept.prefixes == ("orders", "send-*", "mail")
    assert kept.rights == {"read", "write"}
    assert kept.options == {
        "rate": "100/s",
        "pending": 5000,
        "most_prefixes": 7,
        "name": "billing",
        "made": kept.options["made"],
    }
    assert redis.hgetall("timers:keys") == {kept.id: entry}
    everything = json.dumps([redis.hgetall(name) for name in redis.keys("timers:keys*")])
    assert key.split("_")[2] not in everything + timers("keys", "ls").out + timers("keys", "ls", "-o", "json").out


def test_without_options_it_may_do_everything(timers: CommandLine) -> None:
    kept = ApiKey.parse(timers("keys", "make", "-o", "json").json["entry"])
    assert kept.sees is None
    assert kept.rights == {"read", "write", "operate"}


def test_an_entry_for_the_settings_needs_no_redis_and_is_kept_nowhere(bare: CommandLine) -> None:
    made = bare("keys", "make", "--entry-only", "-o", "json")
    assert made.code == 0
    assert "TIMERS_API_KEYS" in made.err
    kept = ApiKey.parse(made.json["entry"])
    assert with_secret(made.json["key"].encode(), {kept.id: kept})


def test_the_list_has_the_keys_of_redis_and_of_the_settings(timers: CommandLine) -> None:
    timers("keys", "make", "--name", "kept")
    own = timers("keys", "make", "--entry-only", "--name", "own", "-o", "json").json["entry"]
    timers.monkeypatch.setenv("TIMERS_API_KEYS", own)
    rows = timers("keys", "ls", "-o", "json").json
    assert {(row["name"], row["kept"], row["status"]) for row in rows} == {
        ("kept", "redis", "valid"),
        ("own", "settings", "valid"),
    }
    table = timers("keys", "ls").out.splitlines()
    names = "ID NAME PREFIXES RIGHTS RATE PENDING MOST_PREFIXES MADE KEPT STATUS"
    assert table[0].split() == names.split()
    assert len(table) == 3


def test_a_revoked_key_stays_revoked_wherever_it_was_kept(timers: CommandLine, redis: Redis) -> None:
    kept = ApiKey.parse(timers("keys", "make", "-o", "json").json["entry"])
    own = ApiKey.parse(timers("keys", "make", "--entry-only", "-o", "json").json["entry"])
    timers.monkeypatch.setenv("TIMERS_API_KEYS", own.entry)
    assert timers("keys", "revoke", kept.id).err == ""
    assert "TIMERS_API_KEYS" in timers("keys", "revoke", own.id).err
    assert redis.hgetall("timers:keys") == {kept.id: "revoked", own.id: "revoked"}
    assert {row["status"] for row in timers("keys", "ls", "-o", "json").json} == {"revoked"}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--prefix", "Orders"),
        ("--prefix", "a*b"),
        ("--right", "admin"),
        ("--rate", "fast"),
        ("--pending", "0"),
        ("--most-prefixes", "0"),
        ("--name", "a b"),
        ("--name", "a:rate=1/s"),
    ],
)
def test_a_wrong_option_makes_no_key(timers: CommandLine, redis: Redis, wrong: tuple[str, str]) -> None:
    line = timers("keys", "make", *wrong).refusal(2)
    assert line.startswith(f"timers: {wrong[0]}: {wrong[1]!r} is not accepted")
    assert redis.exists("timers:keys") == 0


@pytest.mark.parametrize("given", ["tmk_abcdefghij_secret", "aSecretWithoutItsId", "no secret", "a" * 33, ""])
def test_what_can_be_no_id_is_not_revoked_and_not_shown(timers: CommandLine, redis: Redis, given: str) -> None:
    line = timers("keys", "revoke", given).refusal(2)
    assert (
        line == "timers: ID: 'what was given' is not accepted; expected the part of the key between tmk_ and the next _"
    )
    assert redis.exists("timers:keys") == 0
