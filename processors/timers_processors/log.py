"""Owns the processor `log`: every timer of `log`, `log-x`, `log.x` … becomes one line in the log."""

from timers import Context, Timer, processor


@processor("log")
async def log(timer: Timer, context: Context) -> None:
    """Logs the timer with its payload, and is done: to see a timer fire before there is a processor for it."""
    context.log.info(
        "timer fired", prefix=timer.prefix, id=timer.id, occurrence=timer.occurrence, payload=timer.payload
    )
