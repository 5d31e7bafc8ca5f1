"""The tables of the first version with a ledger. A database whose `timers_schema` was emptied has them already.

They are those of `schema`, so a later migration changes only what is still as it was. One that cannot tell that writes
them down here first.
"""

from alembic import op

from timers.ledger.schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
