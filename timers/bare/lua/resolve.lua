#!lua flags=allow-oom
-- Make the timers of bare keys due, or cancel them. A pod reports what it found when it looked at keys in `R:bare`, and expiries
-- that it heard: every pod hears each, and the first report makes the timer due.
--
-- ARGV[2]  the db's epoch
-- ARGV[3]  format of a new record
-- ARGV[4…] one for each key, five lines. After a look: prefix, id, its deadline under `R:bare`, what was found (`there`,
--          `ending`: there until its deadline, `expired`, `deleted`, `lost-ttl`), the spec made from its value or nothing.
--          Of an expiry: prefix, id, how often it was heard within COUNTED_MS, `heard`, ms until which all expiries were heard
-- Answer   {now, code, …}: `due` (the timer can be claimed from its due time on). After a look also `waits` (its time has not
--          come), `cancelled`, `spare` (the key is there, but no timer waits for it), `forgotten` (the key is gone, and no
--          timer waits for it), `stale` (`R:bare` has another deadline; look again). Of an expiry also `known` (another pod
--          reported it), `running` (report it again after the run), `look` (the key is in `R:bare`: look, then report it
--          again), `refused` (its timer was armed otherwise, or has not ended). Of both `newer` (its record has a newer format:
--          nothing was changed). {now, `foreign`} as in arm.lua

if not carries(ARGV[2]) then return {text(now), 'foreign'} end

local COUNTED_MS, LOCK_MS = 5000, 60000

local function answered(member, times)
  call('SET', root .. 'answered:' .. member, times .. ' ' .. text(now), 'PX', LOCK_MS)
end

-- Within COUNTED_MS of the last answer, the lock's count decides: who has heard no more expiries than were answered is late.
-- After that, and for a pod that has heard everything only until longer before that answer, time decides: a pod that stood still,
-- or could not reach Redis, reports what others have answered since, and has counted as one burst what came slowly. Without the
-- lock, the record's history tells when.
local function is_news(member, times, since, r)
  local before, at = string.match(call('GET', root .. 'answered:' .. member) or '', '^(%d+) (%d+)$')
  if before and before ~= '0' and now - at < COUNTED_MS and at - since <= COUNTED_MS then
    return tonumber(times) > tonumber(before)
  end
  if not at and r then
    for ms in string.gmatch(body_of(r), '\n%d+ %a %d+ %S+ %S+ %S+ bare%-expired (%d+)') do at = ms end
  end
  return not at or tonumber(at) <= tonumber(since)
end

-- Whether the newest life of a timer came from a bare key: the last of its history's causes that tell says so. If the history
-- is so long that none is left, it counts as armed otherwise.
local function came_from_key(r)
  local came = false
  for cause in string.gmatch(body_of(r), '\n%d+ %a %d+ %S+ %S+ %S+ (%S+)') do
    if cause == 'replaced' then came = false
    elseif string.sub(cause, 1, 5) == 'bare-' then came = true end
  end
  return came
end

-- Whoever may PUBLISH can forge an expiry. So it may start a new timer, but not change one that was armed otherwise.
local function heard(prefix, id, member, times, since)
  if known_deadline(member) then return 'look' end
  local r, _, newer = read_or_clear(prefix, id)
  if newer then return 'newer' end
  if r and r.waits then  -- its entry is lost
    call('ZADD', root .. 'bare', text(r.due), member)
    return 'look'
  end
  if not is_news(member, times, since, r) then return 'known' end
  if r and (r.status == 's' or not came_from_key(r)) then return 'refused' end
  if r and r.status == 'r' then return 'running' end
  answered(member, times)
  if r then
    drop_trigger(prefix, id)
    leave(prefix, id, r)
  end
  enqueue(prefix, id, now)
  local cause = 'bare-expired ' .. now_text
  local life = new_life(prefix, r, tonumber(ARGV[3]), now, '{}\n', cause)
  if not r then note(life, cause) end
  write(member, life)
  return 'due'
end

local function looked(prefix, id, member, deadline, found, spec)
  if known_deadline(member) ~= deadline then return 'stale' end
  local r, raw, newer = read_or_clear(prefix, id)
  if newer then return 'newer' end
  if raw and not r then
    call('ZREM', root .. 'bare', member)
    return 'stale'
  end
  local waits = r and r.waits
  if found == 'there' then return waits and 'waits' or 'spare' end
  if found == 'ending' and not waits then return 'spare' end
  if found ~= 'ending' then call('ZREM', root .. 'bare', member) end
  -- Pods may or may not report this expiry: 0 means that it was answered though perhaps nobody heard it.
  if found == 'expired' and (waits or deadline <= now) then answered(member, '0') end
  if not waits then return 'forgotten' end
  leave(prefix, id, r)
  if found == 'ending' or found == 'expired' then
    if found == 'expired' then r.due = math.min(deadline, now) end
    if spec ~= '' then set_body(r, spec, nil) end
    note(r, found == 'ending' and 'bare-due' or 'bare-expired ' .. r.due)
    schedule(prefix, id, r.due)
  else
    drop_trigger(prefix, id)
    r.status = 'x'
    note(r, 'bare-' .. found)
    call('ZADD', finished_key('x', prefix), text(now), id)
    recount('s', 'x', prefix)
  end
  write(member, r)
  return r.status == 'x' and 'cancelled' or 'due'
end

local answer = {text(now)}
for i = 4, #ARGV do
  local prefix, id, number, found, rest = string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)\n(%S+)\n(.*)$')
  local member = member_of(prefix, id)
  if found == 'heard' then answer[i - 2] = heard(prefix, id, member, number, rest)
  else answer[i - 2] = looked(prefix, id, member, tonumber(number), found, rest) end
end
conclude()
return answer
