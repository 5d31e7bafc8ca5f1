#!lua
-- Copy bare keys into records. Such a timer waits: no claim takes it until `resolve` lets it go.
--
-- ARGV[2]  the db's epoch
-- ARGV[3]  format of a new record
-- ARGV[4…] one for each key, five lines: prefix, id, the deadline that `R:bare` had before the key was looked at (empty for
--          none), its deadline now, the spec made from its value
-- Answer   {now, code, …}: `adopted`, `moved` (the key of a waiting timer was SET again), `running` (try again after the run),
--          `stale` (`R:bare` has another deadline, or the deadline has passed; look again), `newer` (its record has a newer
--          format: a pod that reads it adopts the key). {now, `foreign`} as in arm.lua

if not carries(ARGV[2]) then return {text(now), 'foreign'} end

local function adopt(prefix, id, known, deadline, spec)
  local member = member_of(prefix, id)
  if known_deadline(member) ~= tonumber(known) or tonumber(deadline) <= now then return 'stale' end
  local r, _, newer = read_or_clear(prefix, id)
  if newer then return 'newer' end
  if r and r.status == 'r' then
    call('ZREM', root .. 'bare', member)
    return 'running'
  end
  local moved = r and r.waits
  if r then leave(prefix, id, r) end
  local cause = moved and 'bare-set-again' or 'bare-adopted'
  local life = new_life(prefix, r, tonumber(ARGV[3]), tonumber(deadline), spec .. '\n', cause)
  if not r then note(life, cause) end
  schedule(prefix, id, life.due)
  call('ZADD', root .. 'bare', deadline, member)
  life.status = 'w'
  write(member, life)
  return moved and 'moved' or 'adopted'
end

local answer = {text(now)}
for i = 4, #ARGV do
  answer[i - 2] = adopt(string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d*)\n(%S+)\n(.*)$'))
end
conclude()
return answer
