"""Keys for tests: what a caller sends and what a pod is given."""

from timers.access import RIGHTS, ApiKey, Right, Scope, make_key


def new_key(
    *prefixes: str, rights: tuple[Right, ...] = RIGHTS, rate: str | None = None, pending: int | None = None
) -> tuple[dict[str, str], ApiKey]:
    """The header to send, and the key as it is kept. For all prefixes where none is given."""
    secret, kept = make_key(Scope.parse(prefixes or ["*"]), frozenset(rights), rate=rate, pending=pending)
    return {"Authorization": f"Bearer {secret}"}, kept
