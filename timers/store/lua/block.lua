#!lua flags=allow-oom
-- Take a queue that is at its limit out of the index of heads until it may go on.
--
-- ARGV[2]  prefix
-- ARGV[3]  for how long, ms; does not shorten a longer block
-- Answer   {now}

local until_ms = now + ARGV[3]
if until_ms > (tonumber(call('ZSCORE', root .. 'blocked', ARGV[2])) or 0) then block(ARGV[2], text(until_ms)) end
return {text(now)}
