#!lua flags=allow-oom,allow-cross-slot-keys
-- Bare keys have expired: make their timers due. Every pod hears of each; whoever comes first does it.
--
-- ARGV[2…] one for each key, four lines: prefix, id, how often the pod has heard it expire within BARE_MS, and the time (ms)
--          until which it knows that each expiry of the key has been answered
-- Answer   {now, code, …}: `due` (claim it), `known` (another pod did it), `running` (an earlier run is under way; try again)

local BARE_MS = 5000
local CLOCK_MS = 10     -- as in adopt.lua
local answer = {text(now)}

-- When an expiry of the key was last answered, from the causes in the history.
local function last_answer(r)
  local last = nil
  for at in string.gmatch(r.rest, '\n(%d+) s %d+ %- %- %- bare%-[a-z-]*expired') do last = at end
  return last
end

-- Within BARE_MS the lock counts: a pod that has heard no more expiries than have been answered is late; one that has heard
-- more brings a new one, even if the key was set again at once. Otherwise the time decides: a pod that stood still, or could
-- not reach Redis, brings what has been answered since it last knew of every answer. When the lock is gone the record knows.
local function is_news(member, heard, since, r)
  local answered, at = string.match(redis.call('GET', bare_lock_key(member)) or '', '^(%d+) (%d+)$')
  if answered and answered ~= '0' and now - at < BARE_MS then return heard > tonumber(answered) end
  at = at or r and last_answer(r)
  return not at or tonumber(at) <= since
end

-- The key is there again, and the record is of that newer one: the timer was rescheduled before this expiry was told.
local function set_again(member, r)
  local left = redis.call('PTTL', member)
  return left > 0 and math.abs(now + left - r.due) <= CLOCK_MS
end

local function due_now(prefix, id, member, r)
  local sooner = r.due - now > CLOCK_MS
  if sooner then r.due = text(now) end
  note(r, sooner and 'bare-set-again-expired' or 'bare-expired')
  write(member, r)
  enqueue(prefix, id, r.due)
end

local function announce(prefix, id, heard, since)
  local member = member_of(prefix, id)
  local r = read_or_clear(prefix, id)
  local news = is_news(member, heard, since, r)
  -- Told again after the run, which may last longer than the lock: so not what is known already.
  if r and r.status == 'r' then return news and 'running' or 'known' end
  local adopted = r and r.status == 's' and redis.call('ZSCORE', root .. 'adopted', member)
  if adopted and set_again(member, r) then return 'known' end
  redis.call('ZREM', root .. 'adopted', member)
  if news then answer_bare(member, heard) elseif not adopted then return 'known' end
  if adopted then
    due_now(prefix, id, member, r)
    return 'due'
  end
  if r then leave(prefix, id, r.status) end
  enqueue(prefix, id, text(now))
  local life = new_life(prefix, r, text(now), '{}', '', 'bare-expired')
  if not r then note(life, 'bare-expired') end
  write(member, life)
  return 'due'
end

for i = 2, #ARGV do
  local prefix, id, heard, since = string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)\n(%d+)$')
  answer[#answer + 1] = announce(prefix, id, tonumber(heard), tonumber(since))
end
conclude()
return answer
