"""The tables of the first version with a ledger. A database whose `timers_schema` was emptied has them already."""

import sqlalchemy as sa
from alembic import op

from timers.ledger.schema import names, now_ms, numbers, texts

revision = "0001"
down_revision = None

_LIVE = "status IN ('scheduled', 'running')"


def upgrade() -> None:
    op.create_table(
        "timers_timers",
        *names("prefix", "id"),
        sa.Column("shard", sa.Integer, nullable=False),
        *texts("status"),
        *numbers("version", "token", "attempt", "failures", "occurrence", "due", "created", "changed"),
        *texts("spec", "progress", "history"),
        sa.Column("pending", sa.Boolean, nullable=False, server_default=sa.false()),
        if_not_exists=True,
    )
    _index("timers_timers_live", "timers_timers", ["shard", "due"], _LIVE)
    _index("timers_timers_finished", "timers_timers", ["changed"], f"NOT ({_LIVE})")
    _index("timers_timers_pending", "timers_timers", ["shard"], "pending")
    op.create_table("timers_facts", *names("kind", "name"), *texts("value"), if_not_exists=True)
    op.create_table(
        "timers_epochs",
        *names("epoch", "server"),
        sa.Column("shards", sa.Integer, nullable=False),
        *numbers("made", "seen"),
        if_not_exists=True,
    )
    op.create_table(
        "timers_inbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True),
        *texts("prefix", "id", "action"),
        sa.Column("body", sa.Text, nullable=False, server_default="{}"),
        sa.Column("at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index("timers_inbox_identity", "timers_inbox", ["prefix", "id", "seq"], if_not_exists=True)
    op.create_table(
        "timers_inbox_refused",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        *texts("prefix", "id", "action", "body"),
        *numbers("at"),
        *texts("problem"),
        if_not_exists=True,
    )
    op.create_table(
        "timers_effects",
        *names("prefix", "id"),
        sa.Column("created", sa.BigInteger, primary_key=True, autoincrement=False),
        *numbers("occurrence"),
        *texts("outcome"),
        *numbers("at"),
        if_not_exists=True,
    )
    op.create_index("timers_effects_at", "timers_effects", ["at"], if_not_exists=True)


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(
        name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where), if_not_exists=True
    )


def downgrade() -> None:
    for table in ("effects", "inbox_refused", "inbox", "epochs", "facts", "timers"):
        op.drop_table(f"timers_{table}")
