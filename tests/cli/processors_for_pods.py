"""Processors that the pods in these tests load by name."""

import asyncio
import os
import sys
import time

from timers import Context, Timer, processor


@processor("hold")
async def hold(_timer: Timer, _context: Context) -> None:
    """Runs longer than any test."""
    await asyncio.sleep(3600)


@processor("hang")
def hang(_timer: Timer, _context: Context) -> None:
    """Cannot be stopped: a plain function in a thread."""
    time.sleep(3600)


@processor("leave", retry={"max_attempts": 1})
async def leave(_timer: Timer, _context: Context) -> None:
    """Calls `sys.exit` in a task of its own."""
    await asyncio.gather(_leave())


async def _leave() -> None:
    sys.exit(3)


@processor("login-check")
async def login_check(_timer: Timer, _context: Context) -> None:
    """Its name begins like the built-in `log`."""


@processor("send-message-vip")
async def send_message_vip(_timer: Timer, _context: Context) -> None:
    """Its name continues that of the built-in `send-message`."""


@processor("leak")
async def leak(_timer: Timer, _context: Context) -> None:
    """Opens files until the pod may open no more."""
    while True:
        try:
            os.dup(2)
        except OSError:
            return
