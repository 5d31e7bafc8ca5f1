"""What a caller may ask for: good and bad values of each field, and errors that say what would be accepted."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.samples import START_MS, a_timer
from timers.core import fields
from timers.core.calls import ChangeFields, FilterFields, NewTimerFields, RepeatFields, RetryFields
from timers.core.durations import format_time
from timers.core.fields import check_id, check_prefix
from timers.core.model import HistoryEntry, Lease, Progress, Status, Timer
from timers.core.policies import Repeat, RetryPolicy
from timers.core.shapes import LADDER_LIMIT
from timers.core.spec import PAYLOAD_LIMIT_BYTES, NewTimer, TimerChange, encode_payload
from timers.errors import InvalidInput

LEAST = {"prefix": "reminder", "delay": "1h"}
DURATION = "a duration such as 250ms"
TIME = "an RFC 3339 time with an offset"
PREFIX = "a prefix like [a-z0-9][a-z0-9_.-]{0,63}, other than 'timers'"
ID = "an id like [A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199}"
INTEGER = "a valid integer"
LADDER = "'exponential', 'fixed' or a list of 1 to 50 durations"
TAGS = "up to 16 strings of 1 to 64 printable characters"
METADATA = "up to 32 pairs of strings, with names of 1 to 64 and values of up to 512 characters"
MISSED = "'fire', 'skip', 'latest', 'all' or {\"grace\": duration}"
HALF = "\ud800"  # JSON can express it, UTF-8 cannot


def complaints(value: object, model: type[NewTimer | TimerChange] = NewTimer) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidInput) as caught:
        model.parse(value)
    return [(error.field, error.value, error.accepted) for error in caught.value.errors]


BAD = [
    # prefix and id
    ({"prefix": ""}, "prefix", "''", PREFIX),
    ({"prefix": "timers"}, "prefix", "'timers'", PREFIX),
    ({"prefix": "Reminder"}, "prefix", "'Reminder'", PREFIX),
    ({"prefix": "a:b"}, "prefix", "'a:b'", PREFIX),
    ({"prefix": "a\n"}, "prefix", "'a\\n'", PREFIX),
    ({"prefix": "ä"}, "prefix", "'ä'", PREFIX),
    ({"prefix": "a" * 65}, "prefix", repr("a" * 65), PREFIX),
    ({"prefix": 5}, "prefix", "5", PREFIX),
    ({"prefix": None}, "prefix", "nothing", PREFIX),
    ({"id": ""}, "id", "''", ID),
    ({"id": "-a"}, "id", "'-a'", ID),
    ({"id": "a b"}, "id", "'a b'", ID),
    ({"id": "a*"}, "id", "'a*'", ID),
    ({"id": "a{0}"}, "id", "'a{0}'", ID),
    ({"id": "a\n"}, "id", "'a\\n'", ID),
    ({"id": 42}, "id", "42", ID),
    ({"id": "a" * 201}, "id", f"'{'a' * 79}…", ID),
    # when
    ({"delay": None}, "delay", "nothing", "exactly one of delay and due_at, or else a retry ladder or repeat.cron"),
    ({"due_at": 5}, "delay", "'1h'", "only one of delay and due_at"),
    ({"delay": True}, "delay", "true", DURATION),
    ({"delay": -1}, "delay", "-1", DURATION),
    ({"delay": "soon"}, "delay", "'soon'", DURATION),
    ({"delay": "11y"}, "delay", "'11y'", DURATION),
    ({"delay": float("nan")}, "delay", "nan", DURATION),
    ({"delay": float("inf")}, "delay", "inf", DURATION),
    ({"delay": [1]}, "delay", "[1]", DURATION),
    ({"delay": None, "due_at": True}, "due_at", "true", TIME),
    ({"delay": None, "due_at": -1}, "due_at", "-1", TIME),
    ({"delay": None, "due_at": "tomorrow"}, "due_at", "'tomorrow'", TIME),
    (
        {"delay": None, "due_at": "2026-11-21T10:00:00"},
        "due_at",
        "'2026-11-21T10:00:00'",
        "the same time with its offset",
    ),
    ({"delay": None, "due_at": 10**15}, "due_at", "1000000000000000", TIME),
    # payload
    ({"payload": float("nan")}, "payload", "nan", "a JSON value (Out of range float"),
    ({"payload": [float("-inf")]}, "payload", "[-inf]", "a JSON value (Out of range float"),
    ({"payload": {"a": HALF}}, "payload", "{'a': '\\ud800'}", "a JSON value ('utf-8' codec can't encode"),
    ({"payload": {"a": {1}}}, "payload", "{'a': {1}}", "a JSON value (Object of type set is not JSON"),
    ({"payload": {(1, 2): 1}}, "payload", "{(1, 2): 1}", "a JSON value (keys must be str"),
    ({"payload": 10**5000}, "payload", "a huge int", "a JSON value (Exceeds the limit"),
    ({"payload": "x" * 65_535}, "payload", "'65537 bytes'", "at most 65536 bytes as JSON"),
    ({"payload": "ä" * 32_768}, "payload", "'65538 bytes'", "at most 65536 bytes as JSON"),
    # repeat
    ({"repeat": "1d"}, "repeat", "'1d'", "an object"),
    ({"repeat": {}}, "repeat.every", "nothing", "exactly one of every and cron"),
    (
        {"repeat": {"every": "1d", "cron": "0 9 * * *"}},
        *("repeat.every", "'1d'", "exactly one of every and cron"),
    ),
    (
        {"repeat": {"every": "0s"}},
        "repeat.every",
        "'0s'",
        "one of TEN_MINS, HOURLY, DAILY, WEEKLY, MONTHLY, or a duration",
    ),
    ({"repeat": {"every": "YEARLY"}}, "repeat.every", "'YEARLY'", "one of TEN_MINS"),
    ({"repeat": {"every": True}}, "repeat.every", "true", "one of TEN_MINS"),
    ({"repeat": {"cron": "61 * * * *"}}, "repeat.cron", "'61 * * * *'", "five cron fields"),
    ({"repeat": {"cron": "0 0 9 * * *"}}, "repeat.cron", "'0 0 9 * * *'", "five cron fields"),
    ({"repeat": {"cron": 5}}, "repeat.cron", "5", "a valid string"),
    ({"repeat": {"every": "1d", "timezone": "Mars"}}, "repeat.timezone", "'Mars'", "an IANA time zone"),
    ({"repeat": {"every": "1d", "count": 0}}, "repeat.count", "0", "greater than or equal to 1"),
    ({"repeat": {"every": "1d", "count": True}}, "repeat.count", "true", INTEGER),
    ({"repeat": {"every": "1d", "count": 2.0}}, "repeat.count", "2.0", INTEGER),
    ({"repeat": {"every": "1d", "count": "2"}}, "repeat.count", "'2'", INTEGER),
    ({"repeat": {"every": "1d", "count": 10**10}}, "repeat.count", "10000000000", "less than or equal to 1000000000"),
    ({"repeat": {"every": "1d", "until": "2027-01-01"}}, "repeat.until", "'2027-01-01'", TIME),
    ({"repeat": {"every": "1d", "until": False}}, "repeat.until", "false", TIME),
    ({"repeat": {"every": "1d", "mode": "rate"}}, "repeat.mode", "'rate'", "'fixed_rate' or 'fixed_delay'"),
    ({"repeat": {"every": "1d", "jitter": 1}}, "repeat.jitter", "1", "one of the fields every, cron"),
    # retry
    ({"retry": "often"}, "retry", "'often'", "an object"),
    ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "0", "greater than or equal to 1"),
    ({"retry": {"max_attempts": 1001}}, "retry.max_attempts", "1001", "less than or equal to 1000"),
    ({"retry": {"max_attempts": True}}, "retry.max_attempts", "true", INTEGER),
    ({"retry": {"max_attempts": 5.0}}, "retry.max_attempts", "5.0", INTEGER),
    ({"retry": {"backoff": "linear"}}, "retry.backoff", "'linear'", LADDER),
    ({"retry": {"backoff": []}}, "retry.backoff", "[]", LADDER),
    ({"retry": {"backoff": 5}}, "retry.backoff", "5", LADDER),
    ({"retry": {"backoff": [1] * 51}}, "retry.backoff", f"{str([1] * 51)[:80]}…", LADDER),
    ({"retry": {"backoff": ["5s", "30s", "soon"]}}, "retry.backoff.2", "'soon'", DURATION),
    ({"retry": {"backoff": ["5s", True]}}, "retry.backoff.1", "true", DURATION),
    (
        {"retry": {"backoff": ["5s"], "max_attempts": 3}},
        *("retry.max_attempts", "3", "no value with a ladder, whose number of steps is the maximum"),
    ),
    ({"retry": {"cap": -1}}, "retry.cap", "-1", DURATION),
    ({"retry": {"jitter": 1}}, "retry.jitter", "1", "true or false"),
    ({"retry": {"delay": 1}}, "retry.delay", "1", "one of the fields max_attempts, backoff"),
    # missed, timeout, if_exists
    ({"missed": "never"}, "missed", "'never'", MISSED),
    ({"missed": None}, "missed", "nothing", MISSED),
    ({"missed": {}}, "missed", "{}", MISSED),
    ({"missed": {"grace": 1, "x": 2}}, "missed", "{'grace': 1, 'x': 2}", MISSED),
    ({"missed": {"grace": True}}, "missed.grace", "true", DURATION),
    ({"missed": "latest"}, "missed", "'latest'", "'latest' and 'all' only with repeat"),
    ({"missed": "all"}, "missed", "'all'", "'latest' and 'all' only with repeat"),
    ({"timeout": 0}, "timeout", "0", "a duration from 1ms"),
    ({"timeout": False}, "timeout", "false", DURATION),
    ({"if_exists": "overwrite"}, "if_exists", "'overwrite'", "'error', 'replace' or 'keep'"),
    # tags, metadata
    ({"tags": "a"}, "tags", "'a'", "a list"),
    ({"tags": ["a", 1]}, "tags.1", "1", "a valid string"),
    ({"tags": [""]}, "tags", "['']", TAGS),
    ({"tags": ["a\nb"]}, "tags", "['a\\nb']", TAGS),
    ({"tags": [HALF]}, "tags", "['\\ud800']", TAGS),
    ({"tags": ["a" * 65]}, "tags", None, TAGS),
    ({"tags": ["a"] * 17}, "tags", None, TAGS),
    ({"metadata": ["a"]}, "metadata", "['a']", "an object"),
    ({"metadata": {"a": 1}}, "metadata.a", "1", "a valid string"),
    ({"metadata": {"a": None}}, "metadata.a", "nothing", "a valid string"),
    ({"metadata": {"a": b"b"}}, "metadata.a", "b'b'", "a valid string"),
    ({"metadata": {"a": HALF}}, "metadata", "{'a': '\\ud800'}", METADATA),
    ({"metadata": {HALF: "a"}}, "metadata", "{'\\ud800': 'a'}", METADATA),
    ({"metadata": {"": "a"}}, "metadata", "{'': 'a'}", METADATA),
    ({"metadata": {"a" * 65: ""}}, "metadata", None, METADATA),
    ({"metadata": {"a": "b" * 513}}, "metadata", None, METADATA),
    ({"metadata": {str(n): "" for n in range(33)}}, "metadata", None, METADATA),
    # names
    ({"dely": "1h"}, "dely", "'1h'", "one of the fields delay, due_at"),
    ({"status": "scheduled"}, "status", "'scheduled'", "one of the fields delay, due_at"),
    ({"ladder_first": True}, "ladder_first", "true", "one of the fields delay, due_at"),
]


@pytest.mark.parametrize(("given", "field", "value", "accepted"), BAD)
def test_a_bad_value_is_refused_with_its_field_itself_and_what_would_do(
    given: dict[str, Any], field: str, value: str | None, accepted: str
) -> None:
    ((found_field, found_value, found_accepted),) = complaints({**LEAST, **given})
    assert found_field == field
    assert value is None or found_value == value
    assert found_accepted.startswith(accepted)
    assert len(found_value) < 100


@pytest.mark.parametrize("given", [None, 5, "a", [], [LEAST]])
def test_a_body_that_is_not_an_object_is_refused(given: object) -> None:
    assert complaints(given)[0][2] == "an object"


def test_a_missing_prefix_is_named() -> None:
    assert complaints({"delay": 1}) == [("prefix", "nothing", "a value, because the field is required")]


def test_every_bad_field_is_named_at_once() -> None:
    found = complaints({"prefix": "A", "delay": "soon", "retry": {"backoff": ["x"]}, "tags": [1], "dely": 1})
    assert {field for field, _, _ in found} == {"prefix", "delay", "retry.backoff.0", "tags.0", "dely"}


def test_the_text_of_an_error_can_be_acted_on() -> None:
    with pytest.raises(InvalidInput, match=r"^retry\.jitter: 1 is not accepted; expected true or false$"):
        NewTimer.parse({**LEAST, "retry": {"jitter": 1}})


def test_a_payload_nested_without_end_is_refused() -> None:
    payload: list[Any] = []
    for _ in range(100_000):
        payload = [payload]
    assert complaints({**LEAST, "payload": payload}) == [
        ("payload", "<class 'list'>", "a JSON value with fewer levels of nesting")
    ]


PAYLOADS: list[Any] = [None, True, 0, 1.5, "", "ä\0\n", [], {}, [{"a": None}], "x" * 65_534]
GOOD: list[dict[str, Any]] = [
    {"prefix": "a" * 64, "id": "a" * 200},
    {"prefix": "0_.-", "id": "0_.:@~+=-"},
    {"id": None},
    {"delay": 0},
    {"delay": 0.5},
    {"delay": "P1M"},
    {"delay": timedelta(hours=1)},
    {"delay": None, "due_at": 0},
    {"delay": None, "due_at": "2026-11-21T10:00:00+01:00"},
    {"delay": None, "due_at": datetime(2026, 11, 21, tzinfo=UTC)},
    *({"payload": payload} for payload in PAYLOADS),
    {"repeat": {"every": "MONTHLY", "timezone": "Europe/Berlin", "count": 1, "until": "2027-01-01T00:00:00Z"}},
    {"repeat": {"every": 60, "mode": "fixed_delay"}},
    {"repeat": {"every": timedelta(days=1)}},
    {"repeat": {"cron": "0 9 * * MON-FRI"}},
    {"retry": {}},
    {"retry": {"max_attempts": 1000, "backoff": "fixed", "base": 0, "cap": "1h", "jitter": False}},
    {"retry": {"backoff": [timedelta(seconds=5), 30, "1m"] + [0] * (LADDER_LIMIT - 3)}},
    {"missed": "skip"},
    {"missed": {"grace": "10m"}},
    {"missed": "all", "repeat": {"every": "1d"}},
    {"timeout": 0.001},
    {"timeout": None},
    {"tags": ["a" * 64] * 16},
    {"metadata": {f"{n:064}": "ä\n" * 256 for n in range(32)}},
    {"if_exists": "keep"},
]


@pytest.mark.parametrize("given", GOOD)
def test_a_good_value_is_accepted_and_reads_back_the_same(given: dict[str, Any]) -> None:
    new = NewTimer.parse({**LEAST, **given})
    spec = new.spec()
    timer = a_timer(spec=json.loads(json.dumps(spec)))
    assert timer.payload == new.payload
    assert timer.repeat == new.repeat
    assert timer.retry == new.retry
    assert timer.missed == new.missed
    assert timer.timeout == new.timeout
    assert timer.tags == list(new.tags)
    assert timer.metadata == new.metadata
    assert NewTimer.parse({**LEAST, **spec}).spec() == spec


@pytest.mark.parametrize("given", GOOD)
def test_the_attributes_of_a_timer_are_the_values_of_its_json(given: dict[str, Any]) -> None:
    error = {"type": "Fail", "reason": "no", "detail": "", "at": "2026-11-21T10:00:00.000Z", "attempt": 1}
    timer = a_timer(
        spec={**NewTimer.parse({**LEAST, **given}).spec(), "traceparent": f"00-{1:032x}-{1:016x}-01"},
        lease=Lease("pod-a", START_MS + 30_000),
        progress=Progress(last_error=error),
        history=[HistoryEntry(START_MS, Status.RUNNING, 1, "pod-a", "event", lateness_ms=3)],
    )
    assert as_attributes(timer, dict(timer.to_json())) == timer.to_json()
    assert type(timer.tags) is list
    assert type(timer.metadata) is dict


def as_attributes(thing: Any, shown: dict[str, Any]) -> dict[str, Any]:
    """An object's attributes by the JSON's names, with nested objects as dicts of theirs."""
    return {name: as_json(getattr(thing, name), value) for name, value in shown.items()}


def as_json(given: Any, shown: Any) -> Any:
    if isinstance(given, datetime):
        assert given.tzinfo is UTC
        return format_time(round(given.timestamp() * 1000))
    if isinstance(given, RetryPolicy | Repeat | Lease | HistoryEntry):
        return as_attributes(given, shown)
    if isinstance(shown, list):
        return [as_json(*pair) for pair in zip(given, shown, strict=True)]
    return given


def as_new(timer: Timer) -> dict[str, Any]:
    """The fields of a timer in an answer that a caller can also ask for."""
    shown = timer.to_json()
    return {name: shown[name] for name in ("payload", "repeat", "retry", "missed", "timeout", "tags", "metadata")}


@pytest.mark.parametrize("given", GOOD)
def test_what_the_api_shows_can_be_sent_back(given: dict[str, Any]) -> None:
    timer = a_timer(spec=NewTimer.parse({**LEAST, **given}).spec())
    again = NewTimer.parse({**LEAST, **json.loads(json.dumps(as_new(timer)))})
    assert as_new(a_timer(spec=again.spec())) == as_new(timer)


def test_of_thousands_of_unknown_fields_a_few_are_named_and_the_others_counted() -> None:
    """A batch may have a thousand such bodies."""
    with pytest.raises(InvalidInput) as raised:
        NewTimer.parse({f"x{i}": 1 for i in range(3000)} | {"prefix": "A", "repeat": {"x": 1, "y": 2}, "delay": "soon"})
    found = [(error.field, error.value) for error in raised.value.errors]
    assert found[:2] == [("delay", "'soon'"), ("repeat.x", "1")]
    assert [field for field, _ in found[2:]] == ["repeat.y", "prefix", *(f"x{i}" for i in range(8)), ""]
    assert found[-1] == ("", "each of 2992 more fields")
    assert str(raised.value).endswith(f"; {raised.value.errors[-1]}")


def test_the_known_fields_are_put_into_words_once_for_thousands_of_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def one_of(names: Iterable[str]) -> str:
        said.append(",".join(names))
        return "a known field"

    monkeypatch.setattr(fields, "one_of", one_of)
    with pytest.raises(InvalidInput) as raised:
        NewTimer.parse({f"x{i}": 1 for i in range(3000)} | {"repeat": {"x": 1, "y": 2}})
    unknown = [error.accepted for error in raised.value.errors].count("a known field")
    assert (unknown, len(said)) == (11, 2)


class TestWishes:
    def test_keep_nothing_that_is_a_default(self) -> None:
        assert NewTimer.parse({**LEAST, "missed": "fire", "tags": [], "metadata": {}, "payload": None}).spec() == {}

    def test_hold_neither_identity_nor_due_time(self) -> None:
        assert NewTimer.parse({**LEAST, "id": "a", "if_exists": "keep", "payload": 1}).spec() == {"payload": 1}

    def test_keep_false_values_of_a_payload(self) -> None:
        empty: list[Any] = [False, 0, "", [], {}]
        for payload in empty:
            assert NewTimer.parse({**LEAST, "payload": payload}).spec() == {"payload": payload}

    @pytest.mark.parametrize(
        ("given", "first"),
        [
            ({}, True),
            ({"repeat": {"every": "1h"}}, True),
            ({"delay": 0}, False),
            ({"due_at": 0}, False),
            ({"repeat": {"cron": "0 9 * * *"}}, False),
        ],
    )
    def test_remember_whether_a_ladder_s_first_step_is_the_delay(self, given: dict[str, Any], *, first: bool) -> None:
        new = NewTimer.parse({"prefix": "a", "retry": {"backoff": ["5s"]}, **given})
        assert ("ladder_first" in new.spec()) is first

    def test_a_cron_needs_no_due_time_and_an_interval_does(self) -> None:
        assert NewTimer.parse({"prefix": "a", "repeat": {"cron": "0 9 * * *"}}).delay is None
        assert complaints({"prefix": "a", "repeat": {"every": "1d"}})[0][0] == "delay"
        assert complaints({"prefix": "a", "retry": {"backoff": "fixed"}})[0][0] == "delay"


class TestIdentity:
    def test_gives_back_what_is_good(self) -> None:
        assert check_prefix("send-message") == "send-message"
        assert check_id("user-42") == "user-42"

    def test_the_reserved_prefix_is_so_only_as_a_whole(self) -> None:
        assert check_prefix("timers-x") == "timers-x"

    def test_names_the_given_field(self) -> None:
        with pytest.raises(InvalidInput, match=r"^filter\.prefix: 'A'"):
            check_prefix("A", "filter.prefix")
        with pytest.raises(InvalidInput, match=r"^timers\.0\.id: '!'"):
            check_id("!", "timers.0.id")


class TestPayload:
    def test_is_compact_and_not_escaped(self) -> None:
        assert encode_payload({"a": [1, "ä"]}) == '{"a":[1,"ä"]}'

    def test_the_limit_counts_bytes(self) -> None:
        assert len(encode_payload("ä" * 32_767).encode()) == PAYLOAD_LIMIT_BYTES
        with pytest.raises(InvalidInput, match="65538 bytes"):
            encode_payload("ä" * 32_768)


def test_a_zone_is_kept_in_its_own_spelling() -> None:
    """Python's own zones are found by no other."""
    timer = NewTimer.parse({"prefix": "mail", "repeat": {"cron": "0 9 * * *", "timezone": "europe/berlin"}})
    assert timer.spec()["repeat"]["timezone"] == "Europe/Berlin"


@pytest.mark.parametrize("fields", [NewTimerFields, ChangeFields, FilterFields, RetryFields, RepeatFields])
def test_pydantic_reads_the_fields(fields: type) -> None:
    """So that a FastAPI view may take them. Before Python 3.12 it refuses a TypedDict of the standard library."""
    assert TypeAdapter(fields).json_schema()["type"] == "object"
