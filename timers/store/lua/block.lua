#!lua flags=allow-oom
-- Take a queue that is at its limit out of the index of heads until it may go on; or let it go on now, and wake the sweepers.

local prefix, for_ms = unpack(ARGV, 2)
local until_ms, blocked_ms = now + for_ms, tonumber(call('ZSCORE', root .. 'blocked', prefix)) or 0
if until_ms > now then
  if until_ms > blocked_ms then block(prefix, text(until_ms)) end
elseif blocked_ms < math.huge then
  block(prefix, nil)
  publish(ARGV[1], tag .. ' ' .. now_text)
end
return {now_text}
