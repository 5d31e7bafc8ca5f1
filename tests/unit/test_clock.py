"""The server's clock as a pod estimates it: readings together are precise, and a step counts at once."""

import pytest

from timers.core.clock import DRIFT, ServerClock

SERVER_MS = 1_795_000_000_000


class Pod:
    """A pod's monotonic clock in seconds, which the test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def pod() -> Pod:
    return Pod()


@pytest.fixture
def clock(pod: Pod) -> ServerClock:
    return ServerClock(pod)


def test_before_the_first_reading_nothing_is_known(clock: ServerClock) -> None:
    assert not clock.known


def test_a_server_that_has_not_been_read_is_taken_to_be_in_step(pod: Pod, clock: ServerClock) -> None:
    clock.observe(SERVER_MS, sent=100.0, received=100.0)
    other = clock.like()
    pod.at += 7
    assert other.now_ms() == pytest.approx(SERVER_MS + 7000.5)
    was_known = other.known
    other.observe(SERVER_MS + 9000, sent=106.0, received=107.0)
    assert (was_known, other.known) == (False, True)
    assert other.now_ms() == pytest.approx(SERVER_MS + 9500.5)


def test_a_reading_is_taken_for_the_middle_of_its_round_trip(pod: Pod, clock: ServerClock) -> None:
    clock.observe(SERVER_MS, sent=99.9, received=100.1)
    assert clock.known
    assert clock.now_ms() == pytest.approx(SERVER_MS + 0.5)


def test_time_goes_on_by_the_pods_monotonic_clock(pod: Pod, clock: ServerClock) -> None:
    clock.observe(SERVER_MS, sent=100.0, received=100.0)
    pod.at += 7
    assert clock.now_ms() == pytest.approx(SERVER_MS + 7000.5)
    assert clock.seconds_until(SERVER_MS + 10_000.5) == pytest.approx(3)
    assert clock.seconds_until(SERVER_MS + 5000.5) == pytest.approx(-2)


def test_a_more_precise_reading_replaces_a_less_precise_one(pod: Pod, clock: ServerClock) -> None:
    clock.observe(SERVER_MS, sent=99.0, received=100.0)
    clock.observe(SERVER_MS + 300, sent=99.999, received=100.001)
    assert clock.now_ms() == pytest.approx(SERVER_MS + 300.5)


def test_a_less_precise_reading_that_agrees_changes_nothing(pod: Pod, clock: ServerClock) -> None:
    clock.observe(SERVER_MS, sent=99.999, received=100.001)
    clock.observe(SERVER_MS + 200, sent=99.5, received=100.5)
    assert clock.now_ms() == pytest.approx(SERVER_MS + 0.5)


@pytest.mark.parametrize("step_ms", [7_200_000, -7_200_000, 200])
def test_a_step_of_the_servers_clock_is_followed_at_once(pod: Pod, clock: ServerClock, step_ms: int) -> None:
    clock.observe(SERVER_MS, sent=99.999, received=100.001)
    clock.observe(SERVER_MS + step_ms, sent=99.95, received=100.05)
    assert clock.now_ms() == pytest.approx(SERVER_MS + step_ms + 0.5)


def test_an_aged_reading_gives_way_to_a_less_precise_one(pod: Pod, clock: ServerClock) -> None:
    """Otherwise one very precise reading would be kept for ever while the clocks drift apart."""
    clock.observe(SERVER_MS, sent=100.0, received=100.0)
    pod.at += 3600
    true_ms = SERVER_MS + 3_600_000 + 40
    clock.observe(true_ms, sent=pod.at - 0.05, received=pod.at + 0.05)
    assert 3600 * 1000 * DRIFT > 40
    assert clock.now_ms() == pytest.approx(true_ms + 0.5)


def test_readings_together_are_more_precise_than_the_milliseconds_they_carry(pod: Pod, clock: ServerClock) -> None:
    """One was taken just before the end of a millisecond, the other just after the begin of one."""
    for into_ms, after_ms in ((0.95, 0), (0.05, 200)):
        pod.at = 100 + (after_ms + into_ms) / 1000
        clock.observe(SERVER_MS + after_ms, sent=pod.at - 0.0001, received=pod.at + 0.0001)
    pod.at = 100.3
    assert clock.now_ms() == pytest.approx(SERVER_MS + 300, abs=0.02)


def test_readings_never_err_by_more_than_half_a_round_trip(pod: Pod, clock: ServerClock) -> None:
    for trip_ms in (400, 3, 80, 5):
        sent = pod.at
        pod.at += trip_ms / 1000
        server_ms = SERVER_MS + (pod.at - 100) * 1000 - trip_ms * 0.9
        clock.observe(int(server_ms), sent=sent, received=pod.at)
        assert abs(clock.now_ms() - (SERVER_MS + (pod.at - 100) * 1000)) <= trip_ms / 2 + 1
        pod.at += 1
