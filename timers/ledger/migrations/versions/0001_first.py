"""The tables of the first version with a ledger."""

import sqlalchemy as sa
from alembic import op

from timers.ledger.schema import now_ms

revision = "0001"
down_revision = None

_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_LIVE = "status IN ('scheduled', 'running')"


def _names(*columns: str) -> list[sa.Column[str]]:
    return [sa.Column(column, _NAME, primary_key=True) for column in columns]


def _texts(*columns: str) -> list[sa.Column[str]]:
    return [sa.Column(column, sa.Text, nullable=False) for column in columns]


def _numbers(*columns: str) -> list[sa.Column[int]]:
    return [sa.Column(column, sa.BigInteger, nullable=False) for column in columns]


def upgrade() -> None:
    op.create_table(
        "timers_timers",
        *_names("prefix", "id"),
        sa.Column("shard", sa.Integer, nullable=False),
        *_texts("status"),
        *_numbers("version", "token", "attempt", "failures", "occurrence", "due", "created", "changed"),
        *_texts("spec", "progress", "history"),
        sa.Column("pending", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    _index("timers_timers_live", "timers_timers", ["shard", "due"], _LIVE)
    _index("timers_timers_finished", "timers_timers", ["changed"], f"NOT ({_LIVE})")
    _index("timers_timers_pending", "timers_timers", ["shard"], "pending")
    op.create_table("timers_facts", *_names("kind", "name"), *_texts("value"))
    op.create_table(
        "timers_epochs",
        *_names("epoch", "server"),
        sa.Column("shards", sa.Integer, nullable=False),
        *_numbers("made", "seen"),
    )
    op.create_table(
        "timers_inbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True),
        *_texts("prefix", "id", "action"),
        sa.Column("body", sa.Text, nullable=False, server_default="{}"),
        sa.Column("at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sqlite_autoincrement=True,
    )
    op.create_index("timers_inbox_identity", "timers_inbox", ["prefix", "id", "seq"])
    op.create_table(
        "timers_inbox_refused",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        *_texts("prefix", "id", "action", "body"),
        *_numbers("at"),
        *_texts("problem"),
    )
    op.create_table(
        "timers_effects",
        *_names("prefix", "id"),
        sa.Column("created", sa.BigInteger, primary_key=True, autoincrement=False),
        *_numbers("occurrence"),
        *_texts("outcome"),
        *_numbers("at"),
    )
    op.create_index("timers_effects_at", "timers_effects", ["at"])


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


def downgrade() -> None:
    for table in ("effects", "inbox_refused", "inbox", "epochs", "facts", "timers"):
        op.drop_table(f"timers_{table}")
