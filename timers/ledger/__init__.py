"""The ledger: a second, durable copy of all timers in an SQL database. The extra `ledger` installs what it needs."""

from timers.errors import ConfigurationError

try:
    import alembic  # noqa: F401
    import greenlet  # noqa: F401
    import sqlalchemy  # noqa: F401
except ImportError as error:
    raise ConfigurationError(f"the ledger needs {error.name}: pip install 'redis-timers[ledger]'") from error

from timers.ledger.effects import Effects, once
from timers.ledger.requests import arm, cancel, statement

__all__ = ["Effects", "arm", "cancel", "once", "statement"]
