"""The fixtures of the engine's tests: real servers of both families, and a fleet whose books must balance in the end."""

from tests.engine.conftest import family, fleet, running_server, server

__all__ = ["family", "fleet", "running_server", "server"]
