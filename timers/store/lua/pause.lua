#!lua flags=allow-oom
-- Pause a queue or let it go on. Nothing of a paused queue is claimed; what runs goes on.
--
-- ARGV[2]  prefix
-- ARGV[3]  `pause` or `resume`
-- Answer   {now, changed}: 0 where it was so already

local command = ARGV[3] == 'pause' and 'SADD' or 'SREM'
local changed = redis.call(command, root .. 'paused', ARGV[2])
if command == 'SREM' then earliest = now end
conclude()
return {text(now), changed}
