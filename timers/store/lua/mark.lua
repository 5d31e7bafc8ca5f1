#!lua flags=allow-oom
-- Mark that the shard is in order now, unless it has gone back in time since the caller last looked: then the newest mark that
-- the caller knows is missing, and only an older one or none is there. The newest few are kept, because several pods may mark.
--
-- ARGV[2]  newest mark that the caller knows, 0 for none
-- ARGV[3]  counts to look at: each is of a prefix and a status
-- ARGV[4]  cursor among them, '0' at first
-- Answer   {now, mark, behind, timers, cursor}: the mark that was made, and ''. Or '' and the mark that the shard went back to
--          (0: it has none); then nothing was changed. Then how many timers are scheduled or running by these counts, and where
--          to go on, '0' at the end

local KEPT = 8       -- one a second: a caller that was away for longer cannot tell
local known = tonumber(ARGV[2])
local there = redis.pcall('GET', root .. 'mark')
local marks, behind, seen, oldest, newest = {}, 0, known == 0, math.huge, 0
for mark in string.gmatch(type(there) == 'string' and there or '', '%d+') do
  local at = tonumber(mark)
  marks[#marks + 1] = mark
  seen = seen or at == known
  oldest, newest = math.min(oldest, at), math.max(newest, at)
  if at < known then behind = math.max(behind, at) end
end

local function counted()
  local found, timers = call('HSCAN', root .. 'counts', ARGV[4], 'COUNT', ARGV[3]), 0
  for i = 1, #found[2], 2 do
    if string.match(found[2][i], '^[sr] ') then timers = timers + (tonumber(found[2][i + 1]) or 0) end
  end
  return timers, found[1]
end

local timers, cursor = counted()
if not seen and (oldest < known or #marks == 0) then return {text(now), '', text(behind), timers, cursor} end
-- Marks rise even if the clock was set back, because that is no loss.
local made = text(math.max(now, newest < 2 ^ 53 - 1 and newest + 1 or 0))
table.insert(marks, 1, made)
call('SET', root .. 'mark', table.concat(marks, ' ', 1, math.min(#marks, KEPT)))
return {text(now), made, '', timers, cursor}
