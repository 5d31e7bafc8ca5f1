#!lua flags=allow-oom
-- Write a checkpoint: the shard is in order now, unless it has gone back in time. Then the newest checkpoint that
-- the caller knows is missing, and only an older one or none is there. The newest few are kept, because several pods write them.
-- Before the first of a shard stands a 0, older than what any caller knows: one that starts after a loss hides it from nobody.

local KEPT = 8       -- one every few seconds: a caller that was away for longer cannot know
local known, act = tonumber(ARGV[2]), ARGV[3]
local there = redis.pcall('GET', root .. 'mark')
local checkpoints, behind, seen, oldest, newest = {}, 0, known == 0, math.huge, 0
for found in string.gmatch(type(there) == 'string' and there or '', '%d+') do
  local at = tonumber(found)
  checkpoints[#checkpoints + 1] = found
  seen = seen or at == known
  oldest, newest = math.min(oldest, at), math.max(newest, at)
  if at < known then behind = math.max(behind, at) end
end

if not seen and (oldest < known or #checkpoints == 0) then return {now_text, '', text(behind)} end
newest = newest < 2 ^ 53 - 1 and newest or 0
if act == 'look' then return {now_text, text(newest), ''} end
-- Checkpoints rise even if the clock was set back, because that is no loss.
local made = text(math.max(now, newest + 1))
checkpoints[1] = checkpoints[1] or '0'
table.insert(checkpoints, 1, made)
call('SET', root .. 'mark', table.concat(checkpoints, ' ', 1, math.min(#checkpoints, KEPT)))
return {now_text, made, ''}
