"""Owns the way to servers: from a URL to clients of one, of those behind Sentinels, or of a cluster; and what a write
waits for there."""

import re
from typing import Final

from redis.exceptions import RedisError

from timers.errors import ConfigurationError
from timers.setting_values import check_redis_url
from timers.store.servers.cluster import connect_cluster
from timers.store.servers.connections import Connections, connect_server
from timers.store.servers.sentinel import connect_sentinels

ANSWER_TIMEOUT_SECONDS: Final = 5.0

_OPTION: Final = re.compile(r"unexpected keyword argument '(.*)'")
"""What redis-py says of an option of a URL that it does not know."""


def connect(url: str, *, answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> Connections:
    """Clients for a URL of any of REDIS_SCHEMES. Opens nothing yet. Raises ConfigurationError."""
    kinds = {"cluster": connect_cluster, "sentinel": connect_sentinels}
    try:
        check_redis_url(url)
        make = kinds.get(url.partition("://")[0].partition("+")[2], connect_server)
        return make(url, answer_timeout_seconds)
    except TypeError as error:
        if (option := _OPTION.search(str(error))) is None:
            raise ConfigurationError(f"TIMERS_REDIS_URL cannot be used: {error}") from error
        said = f"the option {option[1]!r} is not accepted; expected options of redis-py's connections, such as"
        raise ConfigurationError(f"TIMERS_REDIS_URL: {said} socket_timeout=5 or ssl_ca_certs=FILE") from error
    except (ValueError, RedisError) as error:  # a RedisError for the value of an option of TLS
        raise ConfigurationError(f"TIMERS_REDIS_URL cannot be used: {error}") from error
