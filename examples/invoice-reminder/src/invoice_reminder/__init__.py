"""A processor for the timers of `invoice-reminder`: processors/README.md explains it."""

from timers import Context, Done, Fail, Rearm, Retry, Timer, processor


@processor("invoice-reminder", retry={"backoff": ["1m", "10m", "1h"]}, timeout="20s")
async def remind(timer: Timer, context: Context) -> Rearm | Done:
    """Reminds once a day until the invoice is paid, three times at most."""
    sent = timer.payload.get("sent", 0)
    if timer.payload.get("paid"):
        return Done("nothing to do: paid")  # the note is kept in the timer's history
    if sent == 3:
        raise Fail("three reminders and no payment")  # gives up at once
    if not timer.payload.get("mail"):
        raise Retry("no address yet", after="1h")  # another try, at a time of its own
    context.log.info("reminding", number=sent + 1)
    return Rearm(after="1d", payload={**timer.payload, "sent": sent + 1})  # arms the same key again
