"""Rows are found by the time of their change: what changed since a shard last agreed, and removed ones to delete.

On PostgreSQL the old index goes first: this takes the lock that excludes all others once, and waits for nobody while it
has a lesser one.
"""

from alembic import op

from timers.ledger.schema import timers

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.drop_index("timers_timers_finished", "timers_timers", if_exists=True)
    for index in sorted(timers.indexes, key=str):
        index.create(op.get_bind(), checkfirst=True)
