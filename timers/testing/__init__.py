"""Test processors without a server, on a clock that the test moves. Needs the extra `testing`.

::

    async def test_reminds_a_day_later(timer_lab):
        timer_lab.add(remind)
        await timer_lab.timers.create("remind", "a", delay="24h", payload={"user": 1})
        await timer_lab.advance("24h")
        (run,) = timer_lab.runs
        assert run.status == "completed"

The fixture `timer_lab` comes with the package's pytest plugin. `call` calls one processor, without a lab.
"""

from timers.testing.call import call
from timers.testing.lab import LabRun, TimerLab

__all__ = ["LabRun", "TimerLab", "call"]
