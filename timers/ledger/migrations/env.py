"""What Alembic runs around the migrations: on the connection that `database.upgrade` gives it."""

from alembic import context

from timers.ledger.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
