#!lua flags=allow-oom
-- Pause a queue or let it go on. No claim takes from a paused queue; what runs goes on. Keeps the prefix's last pause, which
-- explains why its timers were late.

local PAUSES = 1000     -- kept; with more, all are forgotten
local prefix, act, copied = unpack(ARGV, 2)
if not copied then stay() end
local changed, pauses = nil, root .. 'pauses'
if act == 'pause' then
  changed = call('SADD', root .. 'paused', prefix)
  block(prefix, '+inf')
  if call('HLEN', pauses) >= PAUSES then call('DEL', pauses) end
  if changed == 1 then call('HSET', pauses, prefix, now_text) end
else
  changed = call('SREM', root .. 'paused', prefix)
  block(prefix, nil)
  local from = call('HGET', pauses, prefix)
  if changed == 1 and from then call('HSET', pauses, prefix, from .. ' ' .. now_text) end
  earliest = now
end
conclude()
return {now_text, changed}
