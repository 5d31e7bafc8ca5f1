#!lua flags=allow-oom
-- Make the timers of bare keys due, or cancel them. A pod reports what it found when it looked at keys in `R:bare`, and expiries
-- that it heard: every pod hears each, and the first report makes the timer due.

local epoch, format = unpack(ARGV, 2, 3)
if not carries(epoch) then return {now_text, 'foreign'} end

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
local function heard(prefix, id, member, number, since, is_repeat)
  if known_deadline(member) then return 'look' end
  local r, _, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer' end
  if r and r.waits then  -- its entry is lost
    call('ZADD', root .. 'bare', text(r.due), member)
    return 'look'
  end
  local runs, deadline, spec = r and r.status == 'r', remembered(member, r)
  if deadline and not runs then
    adopt_key(prefix, id, member, r, deadline, spec, format)
    return 'look'
  end
  if not is_news(member, since, number, r) then return 'known' end
  if r and (r.status == 's' or not came_from_key(r)) then return 'refused' end
  if runs then
    -- It had been set again, and nobody has read to what; unless the pod told of this expiry before, perhaps before that key was found.
    if deadline and not is_repeat and now < tonumber(deadline) then call('HDEL', root .. 'meanwhile', member) end
    return 'running'
  end
  answered(member, since, number, now_text)
  if r then
    drop_trigger(prefix, id)
    leave(prefix, id, r)
  end
  enqueue(prefix, id, now)
  earliest = now  -- wakes the others: this pod may die before it claims it
  local cause = 'bare-expired ' .. now_text
  local life = r and renew(prefix, r, now, '{}\n', cause) or begin(prefix, tonumber(format), now, '{}\n')
  if not r then note(life, cause) end
  write(member, life)
  return 'due'
end

-- What a pod found, or `expired/<number>/<since>` if it had heard that expiry.
local function looked(prefix, id, member, deadline, said, spec)
  local found, number, since = string.match(said, '^([^/]+)/?([^/]*)/?(.*)$')
  if known_deadline(member) ~= deadline then
    -- Another read was faster, and may have answered this expiry without its number: then the next one would pass for it.
    if found == 'expired' and since ~= '' then is_news(member, since, number) end
    return 'stale'
  end
  local r, raw, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer' end
  if raw and not r then
    call('ZREM', root .. 'bare', member)
    return 'stale'
  end
  local waits = r and r.waits
  if found == 'there' then return waits and 'waits' or 'spare' end
  if found == 'ending' and not waits then return 'spare' end
  if found ~= 'ending' then call('ZREM', root .. 'bare', member) end
  if found == 'expired' and (waits or deadline <= now) then found_expired(member, since, number, r) end
  if not waits then return 'forgotten' end
  leave(prefix, id, r)
  if found == 'ending' or found == 'expired' then
    if found == 'expired' then r.due = math.min(deadline, now) end
    if spec ~= '' then set_body(r, spec, nil) end
    note(r, found == 'ending' and 'bare-due' or 'bare-expired ' .. r.due)
    schedule(prefix, id, r.due)
  else
    drop_trigger(prefix, id)
    end_as('x', prefix, id, r, 'bare-' .. found)
    return 'cancelled'
  end
  write(member, r)
  return 'due'
end

-- What has become of a key that was remembered during a run: it is `left` or `gone`.
local function after_run(prefix, id, member, found)
  local r, _, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer' end
  local deadline, spec = remembered(member, r)
  if not deadline then return 'stale' end
  if found == 'gone' and now < tonumber(deadline) then
    call('HDEL', root .. 'meanwhile', member)
    return 'forgotten'
  end
  if r and r.status == 'r' then return 'running' end
  return adopt_key(prefix, id, member, r, deadline, spec, format)
end

local answer = {now_text}
for i = 4, #ARGV do
  local prefix, id, number, found, rest = string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d+)\n(%S+)\n(.*)$')
  local member = member_of(prefix, id)
  if found == 'heard' or found == 'again' then answer[i - 2] = heard(prefix, id, member, number, rest, found == 'again')
  elseif found == 'left' or found == 'gone' then answer[i - 2] = after_run(prefix, id, member, found)
  else answer[i - 2] = looked(prefix, id, member, tonumber(number), found, rest) end
end
conclude()
return answer
