-- Bare keys have expired: make their timers due. Every pod hears of each; whoever comes first does it.
--
-- ARGV[2…] one for each key, three lines: prefix, id, how often the pod has heard it expire within BARE_MS
-- Answer   {now, code, …}: `due` (claim it), `known` (another pod did it), `running` (the last run is under way; try again)

local BARE_MS = 5000
local answer = {text(now)}

-- The lock of a bare key: SET … PX with the number of expiries that have been answered. A pod that has heard no more of
-- them than that is late; one that has heard more brings a new one, even if the key was set again at once.
local function first(member, heard)
  local key = root .. 'bare:' .. member
  local answered = tonumber(redis.call('GET', key)) or 0
  if heard <= answered then return false end
  redis.call('SET', key, heard, 'PX', BARE_MS)
  return true
end

local function announce(prefix, id, heard)
  local member = member_of(prefix, id)
  local r = read(member)
  if r and r.status == 'r' then return 'running' end
  local adopted = redis.call('ZREM', root .. 'adopted', member) == 1
  if not first(member, heard) and not adopted then return 'known' end
  if adopted and r and r.status == 's' then
    enqueue(prefix, id, r.due)
    return 'due'
  end
  if r then leave(prefix, id, r.status) end
  enqueue(prefix, id, text(now))
  write(member, new_life(prefix, r, text(now), '{}', '', 'its bare key expired'))
  return 'due'
end

for i = 2, #ARGV do
  local prefix, id, heard = string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)$')
  answer[#answer + 1] = announce(prefix, id, tonumber(heard))
end
conclude()
return answer
