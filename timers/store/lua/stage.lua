#!lua flags=no-writes
-- How far the shard and the ledger have come to agree. A shard that was lost says nothing.

return {now_text, stage() or ''}
