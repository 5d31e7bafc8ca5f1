"""API keys: what is stored, what they cover, and that only the right key opens."""

import hashlib
import hmac

import pytest

from timers.access import ALL_PREFIXES, ApiKey, make_key, parse_rights, read_entries, with_secret
from timers.core.policies import Rate
from timers.errors import InvalidInput

READ = parse_rights(["read"])
DIGEST = hashlib.sha256(b"x").hexdigest()


def test_a_key_is_kept_without_its_secret_and_read_back_the_same() -> None:
    secret, kept = make_key(["orders", "send-*"], READ, rate="100/s", pending=5, name="x", made="2026-11-21")
    assert secret.startswith(f"tmk_{kept.id}_")
    assert len(secret.split("_")[2]) * 5.95 > 250  # bits, with 62 possible characters
    assert secret.split("_")[2] not in kept.entry + repr(kept)
    assert kept.digest.hex() not in repr(kept)
    assert ApiKey.parse(kept.entry) == kept
    assert kept.rate == Rate(interval_us=10_000, burst=100)
    assert kept.options["pending"] == 5


def test_no_two_keys_are_alike() -> None:
    made = [make_key(["*"], READ) for _ in range(100)]
    assert len({secret for secret, _ in made}) == len({kept.id for _, kept in made}) == 100


@pytest.mark.parametrize(
    ("patterns", "prefix", "covered"),
    [
        (["orders"], "orders", True),
        (["orders"], "orders-eu", False),
        (["orders-eu"], "orders", False),
        (["orders*"], "orders", True),
        (["orders*"], "orders-eu", True),
        (["orders-*"], "orders", False),
        (["a", "b*"], "bc", True),
        (["*"], "anything", True),
    ],
)
def test_a_prefix_covers_itself_and_with_a_star_its_continuations(
    patterns: list[str], prefix: str, covered: bool
) -> None:
    _, kept = make_key(patterns, READ)
    assert kept.covers(prefix) is covered
    assert (kept.sees is None) is (patterns == [ALL_PREFIXES])


@pytest.mark.parametrize(
    "entry",
    [
        "k1",
        f"k1:{DIGEST[:-1]}:*:read",
        f"K 1:{DIGEST}:*:read",
        f":{DIGEST}:*:read",
        f"k1:{DIGEST}::read",
        f"k1:{DIGEST}:a*b:read",
        f"k1:{DIGEST}:timers:read",
        f"k1:{DIGEST}:*:admin",
        f"k1:{DIGEST}:*:",
        f"k1:{DIGEST}:*:read:rate=fast",
        f"k1:{DIGEST}:*:read:pending=0",
        f"k1:{DIGEST}:*:read:pending=-1",
        f"k1:{DIGEST}:*:read:pending={'9' * 5000}",
        f"k1:{DIGEST}:*:read:colour=red",
        f"k1:{DIGEST}:*:read,k1:{DIGEST}:*:write",
    ],
)
def test_an_invalid_entry_is_refused(entry: str) -> None:
    with pytest.raises(InvalidInput):
        read_entries(entry)


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [("name", "Ü", "letters, digits"), ("pending", "0", "whole number from 1"), ("colour", "red", "rate, pending")],
)
def test_an_option_that_is_not_accepted_is_told_what_would_be(option: str, value: str, accepted: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{option}: '{value}' is not accepted; expected [^=]*{accepted}"):
        make_key(["*"], READ, **{option: value})


def test_entries_are_parted_by_commas_and_spaces() -> None:
    text = f"k1:{DIGEST}:*:read, k2:{DIGEST}:a+b*:read+write:pending=7\nstored"
    assert [key.id for key in read_entries(text)] == ["k1", "k2"]


def test_only_the_whole_key_is_found() -> None:
    secret, kept = make_key(["*"], READ)
    other, other_kept = make_key(["*"], READ)
    keys = {key.id: key for key in (kept, other_kept)}
    found = with_secret(secret.encode(), keys)
    assert found is not None
    assert found.id == kept.id
    wrong = [
        b"", b"tmk", b"tmk_", b"tmk__", b"\xff\xfe", "tmk_ä_ö".encode(), secret[:-1].encode(), secret.encode() + b"x",
        secret.upper().encode(), secret.replace(kept.id, other_kept.id).encode(), f"tmk_{kept.id}_".encode(),
        f"tmk_{kept.id}_{kept.digest.hex()}".encode(), kept.entry.encode(), f" {secret}".encode(),
    ]  # fmt: skip
    assert [with_secret(given, keys) for given in wrong] == [None] * len(wrong)
    assert with_secret(other.encode(), keys) is not None


def test_a_known_id_and_an_unknown_one_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compare bytes of equal length with compare_digest."""
    seen: list[tuple[object, object]] = []
    real = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    secret, kept = make_key(["*"], READ)
    for given in (secret.encode(), f"tmk_{kept.id}_wrong".encode(), b"tmk_nobody_wrong", b"\xff", b""):
        with_secret(given, {kept.id: kept})
    assert len(seen) == 5
    assert all(isinstance(part, bytes) and len(part) == 32 for pair in seen for part in pair)
