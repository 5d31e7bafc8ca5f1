CREATE TABLE timers_effects (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    created BIGINT NOT NULL,
    occurrence BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (prefix, id, created)
);

CREATE INDEX timers_effects_at ON timers_effects (at);

CREATE TABLE timers_epochs (
    epoch TEXT NOT NULL,
    server TEXT NOT NULL,
    shards INTEGER NOT NULL,
    made BIGINT NOT NULL,
    seen BIGINT NOT NULL,
    PRIMARY KEY (epoch, server)
);

CREATE TABLE timers_facts (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE timers_inbox (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    action TEXT NOT NULL,
    body TEXT DEFAULT '{}' NOT NULL,
    at BIGINT DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL
);

CREATE INDEX timers_inbox_identity ON timers_inbox (prefix, id, seq);

CREATE TABLE timers_inbox_refused (
    seq BIGINT NOT NULL,
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    action TEXT NOT NULL,
    body TEXT NOT NULL,
    at BIGINT NOT NULL,
    problem TEXT NOT NULL,
    PRIMARY KEY (seq)
);

CREATE TABLE timers_timers (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    shard INTEGER NOT NULL,
    status TEXT NOT NULL,
    version BIGINT NOT NULL,
    token BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    occurrence BIGINT NOT NULL,
    due BIGINT NOT NULL,
    created BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    spec TEXT NOT NULL,
    progress TEXT NOT NULL,
    history TEXT NOT NULL,
    pending BOOLEAN DEFAULT 0 NOT NULL,
    PRIMARY KEY (prefix, id)
);

CREATE INDEX timers_timers_finished ON timers_timers (changed) WHERE (status NOT IN ('scheduled', 'running'));

CREATE INDEX timers_timers_live ON timers_timers (shard, due) WHERE status IN ('scheduled', 'running');

CREATE INDEX timers_timers_pending ON timers_timers (shard) WHERE pending;
