"""The fixtures of the examples' tests: a server, and pods as processes."""

from tests.cli.conftest import redis, server, start

__all__ = ["redis", "server", "start"]
