"""Tests the processor without a server, on a clock that the test controls."""

from timers import Done
from timers.testing import TimerLab, call

from invoice_reminder import remind


async def test_it_reminds_once_a_day_and_gives_up_after_three(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    await timer_lab.timers.create("invoice-reminder", "a", delay="24h", payload={"mail": "ada@example.org"})
    await timer_lab.advance("23h")
    assert not timer_lab.runs
    await timer_lab.advance("4d")
    assert [run.status for run in timer_lab.runs] == ["completed", "completed", "completed", "failed"]
    assert timer_lab.runs[-1].error == "Fail: three reminders and no payment"


async def test_it_tries_again_after_an_hour_without_an_address(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    await timer_lab.timers.create("invoice-reminder", "a", delay="24h", payload={})
    await timer_lab.advance("24h")
    assert [run.error for run in timer_lab.runs] == ["Retry: no address yet"]
    await timer_lab.advance("59m")
    assert len(timer_lab.runs) == 1
    await timer_lab.advance("1m")
    assert len(timer_lab.runs) == 2


async def test_it_reminds_nobody_who_has_paid() -> None:
    assert await call(remind, payload={"paid": True}) == Done("nothing to do: paid")
