"""API keys for tests: the header that a caller sends, and the entry that a pod is given."""

from timers.access import RIGHTS, ApiKey, Right, make_key


def new_key(
    *prefixes: str,
    rights: tuple[Right, ...] = RIGHTS,
    rate: str | None = None,
    pending: int | None = None,
    name: str | None = None,
) -> tuple[dict[str, str], ApiKey]:
    """Returns the header to send and the key as it is stored. Without prefixes the key is for all of them."""
    secret, kept = make_key(prefixes or ["*"], rights, rate=rate, pending=pending, name=name)
    return {"Authorization": f"Bearer {secret}"}, kept
