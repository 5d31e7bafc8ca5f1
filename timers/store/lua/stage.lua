#!lua flags=no-writes
-- How far the shard and the ledger have come to agree, and the shard's life. A shard that was lost says nothing.

return {now_text, stage() or '', life()}
