"""How tests connect to a server on a busy machine."""

from tests.waiting import DEADLINE_SECONDS


def patient(url: str) -> str:
    """The URL of a server, with a whole test's time to connect. Beside other work both may stand still for seconds."""
    return f"{url}{'&' if '?' in url else '?'}socket_connect_timeout={DEADLINE_SECONDS}"
