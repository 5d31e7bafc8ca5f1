#!lua flags=allow-oom
-- Take a queue that is at its limit out of the index of heads until it may go on; or let it go on now, and wake the sweepers.
--
-- ARGV[2]  prefix
-- ARGV[3]  for how long, ms; does not shorten a longer block; 0 ends it, unless the queue is paused
-- Answer   {now}

local until_ms, blocked_ms = now + ARGV[3], tonumber(call('ZSCORE', root .. 'blocked', ARGV[2])) or 0
if until_ms > now then
  if until_ms > blocked_ms then block(ARGV[2], text(until_ms)) end
elseif blocked_ms < math.huge then
  block(ARGV[2], nil)
  publish(ARGV[1], tag .. ' ' .. text(now))
end
return {text(now)}
