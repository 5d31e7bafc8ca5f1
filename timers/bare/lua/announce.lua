#!lua flags=allow-oom
-- Make the timers of bare keys due that expired before adoption. Every pod hears each expiry; the first to report it does this.
--
-- ARGV[2]  the db's epoch
-- ARGV[3…] one for each key, four lines: prefix, id, how often the pod has heard it expire within COUNTED_MS, and the time
--          (ms) until which the pod has heard every expiry
-- Answer   {now, code, …}: `due` (claim it), `known` (another pod did this), `running` (an earlier run is under way; try again),
--          `look` (the key is in `R:bare`: look at it, then announce it again). {now, `foreign`} as in arm.lua

if not carries(ARGV[2]) then return {text(now), 'foreign'} end

local COUNTED_MS, LOCK_MS = 5000, 60000
local answer = {text(now)}

-- When an expiry was last answered, as the history says.
local function last_answer(r)
  local last = nil
  for at in string.gmatch(r.rest, '\n%d+ %a %d+ %S+ %S+ %S+ bare%-expired (%d+)') do last = at end
  return last
end

-- Within COUNTED_MS of the last answer, the lock's count decides. A pod that has heard no more expiries than were answered
-- is late; a pod that has heard more reports a new one, even if the key was set again at once. After that, time decides: a
-- pod that stood still, or could not reach Redis, reports what others have answered since. Without the lock, the record's
-- history tells when.
local function is_news(member, heard, since, r)
  local lock = call('GET', root .. 'answered:' .. member)
  local answered, at = string.match(lock or '', '^(%d+) (%d+)$')
  if answered and answered ~= '0' and now - at < COUNTED_MS then return tonumber(heard) > tonumber(answered) end
  at = at or r and last_answer(r)
  return not at or tonumber(at) <= tonumber(since)
end

local function announce(prefix, id, heard, since)
  local member = member_of(prefix, id)
  if call('ZSCORE', root .. 'bare', member) then return 'look' end
  local r = read_or_clear(prefix, id)
  if not is_news(member, heard, since, r) then return 'known' end
  if r and r.status == 'r' then return 'running' end
  call('SET', root .. 'answered:' .. member, heard .. ' ' .. text(now), 'PX', LOCK_MS)
  if r then leave(prefix, id, r.status) end
  enqueue(prefix, id, text(now))
  local cause = 'bare-expired ' .. text(now)
  local life = new_life(prefix, r, text(now), '{}', '', cause)
  if not r then note(life, cause) end
  write(member, life)
  return 'due'
end

for i = 3, #ARGV do
  answer[#answer + 1] = announce(string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)\n(%d+)$'))
end
conclude()
return answer
