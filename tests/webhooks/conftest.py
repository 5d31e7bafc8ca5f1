"""The fixtures of the engine's tests: Redis and Valkey servers, and a fleet whose books must balance after a test."""

from tests.engine.conftest import _short_logs, fleet, server

__all__ = ["_short_logs", "fleet", "server"]
