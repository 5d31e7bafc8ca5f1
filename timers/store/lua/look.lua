#!lua flags=no-writes
-- Read what the db is, on a replica too. KEYS[1] is `timers:meta`.

local fields = redis.pcall('HGETALL', KEYS[1])
if fields.err then return fields end
return {now_text, fields}
