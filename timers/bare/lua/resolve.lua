#!lua flags=allow-oom
-- Apply what a look at known bare keys found: let their timers go, or cancel them.
--
-- ARGV[2]  the db's epoch
-- ARGV[3…] one for each key, five lines: prefix, id, its deadline under `R:bare`, what was found (`there`, `ending`: there until
--          its deadline, `expired`, `deleted`, `lost-ttl`), the spec made from its value, or nothing to keep the old one
-- Answer   {now, code, …}: `waits` (its time has not come), `due` (the timer can be claimed from its due time on),
--          `cancelled`, `spare` (the key is there, but no timer waits for it), `forgotten` (the key is gone, and no timer
--          waits for it), `stale` (`R:bare` has another deadline; look again). {now, `foreign`} as in arm.lua

if not carries(ARGV[2]) then return {text(now), 'foreign'} end

local LOCK_MS = 60000   -- as in announce.lua
local answer = {text(now)}

local function resolve(prefix, id, known, found, spec)
  local member, deadline = member_of(prefix, id), tonumber(known)
  if tonumber(call('ZSCORE', root .. 'bare', member) or '') ~= deadline then return 'stale' end
  local r, raw = read_or_clear(prefix, id)
  if raw and not r then
    call('ZREM', root .. 'bare', member)
    return 'stale'
  end
  local waits = r and r.waits
  if found == 'there' then return waits and 'waits' or 'spare' end
  if found == 'ending' and not waits then return 'spare' end
  if found ~= 'ending' then call('ZREM', root .. 'bare', member) end
  -- Pods may or may not report this expiry: 0 means that it was answered though perhaps nobody heard it.
  if found == 'expired' and (waits or deadline <= now) then
    call('SET', root .. 'answered:' .. member, '0 ' .. text(now), 'PX', LOCK_MS)
  end
  if not waits then return 'forgotten' end
  leave(prefix, id, 's')
  if found == 'ending' or found == 'expired' then
    if found == 'expired' then r.due = text(math.min(deadline, now)) end
    if spec ~= '' then set_body(r, spec, nil) end
    note(r, found == 'ending' and 'bare-due' or 'bare-expired ' .. r.due)
    schedule(prefix, id, r.due)
  else
    r.status = 'x'
    note(r, 'bare-' .. found)
    call('ZADD', finished_key('x', prefix), text(now), id)
    recount('s', 'x', prefix)
  end
  write(member, r)
  return r.status == 'x' and 'cancelled' or 'due'
end

for i = 3, #ARGV do
  answer[#answer + 1] = resolve(string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)\n(%S+)\n(.*)$'))
end
conclude()
return answer
