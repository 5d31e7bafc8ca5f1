"""Owns the reminder to verify one's address: a day after the signup, then once a week."""

import os
from typing import Final

from signup import users
from timers import BlockingContext, Done, Rearm, Timer, processor

DAY_SECONDS: Final = float(os.environ.get("SIGNUP_DAY_SECONDS", "86400"))
"""How long a day lasts: set it to 2 to see a week in 14 seconds."""


@processor("signup-reminder", timeout="30s")
def remind(timer: Timer, context: BlockingContext) -> Rearm | Done:
    """Write to a user who has not verified the address, and come back in a week."""
    user = users.find(timer.id)
    if user is None or user.verified:
        return Done("nothing to do: verified or gone")
    context.timers.create(
        "send-message",
        f"{timer.id}-{timer.occurrence}",
        delay=0,
        payload={"email": user.email, "name": user.name, "text": "Hello {name}, please verify your address."},
        if_exists="keep",  # a second try of this occurrence sends no second message
    )
    return Rearm(after=7 * DAY_SECONDS)
