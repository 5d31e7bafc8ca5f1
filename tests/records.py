"""The parts of a stored record, for tests that damage or move one behind the service's back."""

import struct
from typing import Final

HEAD: Final = struct.Struct(">2scIIIIQQQ")
"""Format, status, version, attempt, failures, occurrence, token, creation and due time, as PROTOCOL.md has it."""


def divided(record: object) -> tuple[bytes, list[bytes]]:
    """The head, and the lines after it: spec, progress, history."""
    assert isinstance(record, bytes)
    assert record[:2] == b"2 "
    return record[: HEAD.size], record[HEAD.size :].split(b"\n")
