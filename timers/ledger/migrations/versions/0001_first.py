"""The tables of the first version with a ledger. A database whose `timers_schema` was emptied has them already.

While this is the only migration they are those of `schema`. The next one writes them down here first, as they were.
"""

from alembic import op

from timers.ledger.schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
