#!lua flags=allow-oom
-- Keep a queue that is at its limit out of the index that is looked at, until it may go on.
--
-- ARGV[2]  prefix
-- ARGV[3]  for how long, ms; a queue that is blocked for longer stays so
-- Answer   {now}

local until_ms = now + ARGV[3]
if until_ms > (tonumber(redis.call('ZSCORE', root .. 'blocked', ARGV[2])) or 0) then block(ARGV[2], text(until_ms)) end
return {text(now)}
