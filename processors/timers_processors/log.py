"""Owns the processor `log`: every timer of `log`, `log-x`, `log.x` … becomes one line in the log."""

from timers import Context, Timer, processor


@processor("log")
async def log(timer: Timer, context: Context) -> None:
    """Logs the timer with its payload and completes, so that you can see a timer fire before it has a processor."""
    context.log.info(
        "timer fired", prefix=timer.prefix, id=timer.id, occurrence=timer.occurrence, payload=timer.payload
    )
