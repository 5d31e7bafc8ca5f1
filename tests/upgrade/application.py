"""A program with a client of its own: arms a timer, waits for the file of its argument, and arms over another one."""

import asyncio
import sys
from pathlib import Path

from timers import TimerClient, TimersError


async def main(goes_on: Path) -> None:
    """Prints what it did, line by line."""
    async with TimerClient() as client:
        await client.create("plain", "first", delay="1h")
        print("armed", flush=True)  # noqa: T201 (the test reads it)
        while not goes_on.exists():  # noqa: ASYNC110 (another process sets no event here)
            await asyncio.sleep(0.02)
        try:
            await client.create("plain", "later", delay="1h", if_exists="replace")
        except TimersError as error:
            print(error, flush=True)  # noqa: T201


asyncio.run(main(Path(sys.argv[1])))
