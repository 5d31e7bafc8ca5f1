"""The processor `log`: it logs one line with the timer and its payload."""

from structlog.testing import capture_logs

from tests.unit.samples import a_timer, run
from timers_processors.log import log


async def test_logs_the_timer_and_is_done() -> None:
    timer = a_timer(prefix="log-signups", id="user-42", occurrence=3, spec={"payload": {"n": [1, None]}})
    with capture_logs() as lines:
        assert await run(log, timer) is None
    assert lines == [
        {
            "log_level": "info",
            "event": "timer fired",
            "prefix": "log-signups",
            "id": "user-42",
            "occurrence": 3,
            "payload": {"n": [1, None]},
        }
    ]


def test_has_the_prefix_log_and_no_timeout() -> None:
    assert (log.prefix, log.timeout_ms) == ("log", None)
