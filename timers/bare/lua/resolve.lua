#!lua flags=allow-oom
-- Say what a look at known bare keys has found: let their timers go, or cancel them.
--
-- ARGV[2]  how long before its deadline a key that is there lets its timer go, ms
-- ARGV[3…] five for each key: prefix, id, its deadline under `R:bare`, what was found (`there`, `expired`, `deleted`,
--          `lost-ttl`), the spec made of its value, or '' to keep it
-- Answer   {now, code, …}: `waits` (its time has not come), `due` (the timer is claimed like any other from its due time on),
--          `cancelled`, `spare` (no timer waits for the key that is there), `forgotten` (nor for this one, which is gone),
--          `stale` (the shard knows more; look again)

local LOCK_MS = 60000   -- as in announce.lua
local lead_ms = tonumber(ARGV[2])
local answer = {text(now)}

-- Its event may be told by any pod, or by none: 0 says that an expiry was answered which nobody need have heard.
local function answer_expiry(member)
  redis.call('SET', root .. 'answered:' .. member, '0 ' .. text(now), 'PX', LOCK_MS)
end

local function let_go(prefix, id, member, r, spec, cause)
  if spec ~= '' then set_body(r, spec, nil) end
  note(r, cause)
  schedule(prefix, id, r.due)
  write(member, r)
  return 'due'
end

local function cancel(prefix, id, member, r, cause)
  r.status = 'x'
  note(r, cause)
  redis.call('ZADD', finished_key('x', prefix), text(now), id)
  recount('s', 'x', prefix)
  write(member, r)
  return 'cancelled'
end

local function resolve(prefix, id, known, found, spec)
  local member, deadline = member_of(prefix, id), tonumber(known)
  local score = redis.call('ZSCORE', root .. 'bare', member)
  if not score or tonumber(score) ~= deadline then return 'stale' end
  local r, trouble, raw = read(member)
  if raw and not r then
    quarantine(prefix, id, trouble, raw)
    redis.call('ZREM', root .. 'bare', member)
    return 'stale'
  end
  local waits = r and r.waits
  if found == 'there' then
    if not waits then return 'spare' end
    if deadline - now > lead_ms then return 'waits' end
    leave(prefix, id, 's')
    return let_go(prefix, id, member, r, spec, 'bare-due')
  end
  redis.call('ZREM', root .. 'bare', member)
  if found == 'expired' and (waits or deadline <= now) then answer_expiry(member) end
  if not waits then return 'forgotten' end
  leave(prefix, id, 's')
  if found == 'expired' then
    r.due = text(math.min(deadline, now))
    return let_go(prefix, id, member, r, '', 'bare-expired ' .. r.due)
  end
  return cancel(prefix, id, member, r, 'bare-' .. found)
end

for i = 3, #ARGV, 5 do
  answer[#answer + 1] = resolve(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
conclude()
return answer
