-- The lock of a bare key, by which an expiry that many pods report fires once.

local LOCK_MS = 60000
local AHEAD_MS = 1000

-- When an expiry of a key was answered last; and if no pod of an earlier version did it, which one that was, as the pod that reported
-- it calls it (`since` is `<ms>@<pod>`). A star says that one more was answered, though perhaps no pod has heard it. `shared` is the last
-- name that pods agree on, `<since> <number>`: this one, or one before it.
local function lock_of(member)
  local at = string.match(call('GET', root .. 'answered:' .. member) or '', ' (%d+)$')
  local last = call('GET', root .. 'expiry:' .. member) or ''
  local since, number, told, unheard, shared = string.match(last, '^(%d+@%S*) (%d+) (%d+)(%*?) ?(.*)$')
  if told ~= at then since, number, unheard, shared = nil, nil, nil, nil end
  return since, number, at, unheard, shared
end

-- Pods of an earlier version know by the 0 that time decides.
local function answered(member, since, number, at, unheard)
  local _, _, _, _, shared = lock_of(member)
  local name = since .. ' ' .. number
  if string.sub(since, -1) == '@' then shared = name end
  call('SET', root .. 'answered:' .. member, '0 ' .. at, 'PX', LOCK_MS)
  call('SET', root .. 'expiry:' .. member, name .. ' ' .. at .. (unheard or '') .. ' ' .. (shared or ''), 'PX', LOCK_MS)
end

local function answered_unheard(member)
  local since, number = lock_of(member)
  answered(member, since or '0@', number or '0', now_text, '*')
end

-- Redis sends all its subscribers the same events in the same order. So what came after a later canary, or has a higher number, is a
-- later expiry, and so is what came after a canary that a pod that counts from its own subscription has not heard. Such a pod's own
-- reports only time can judge: what it has heard since the millisecond after the last answer is news, and anything else counts as what
-- was answered. Where pods agree on what that was, their name for it takes the place of a name that only one pod has. Without the lock,
-- the record's history tells when. A time that lies ahead is from before the clock was set back, and so earlier than any other.
local function is_news(member, since, number, r)
  local last, last_number, at, unheard, shared = lock_of(member)
  local shared_since, shared_number = string.match(shared or '', '^(%S+) (%d+)$')
  if shared_since == since and tonumber(number) <= tonumber(shared_number) then return false end  -- told before the last one
  local function past(ms) return tonumber(ms) > now + AHEAD_MS and 0 or tonumber(ms) end
  local since_ms, alone = string.match(since, '^(%d+)@(.*)$')
  local is_later
  if last == since then
    is_later = tonumber(number) > tonumber(last_number)
  else
    if not at and r then
      for ms in string.gmatch(body_of(r), '\n%d+ %a %d+ %S+ %S+ %S+ bare%-expired (%d+)') do at = ms end
    end
    if not at or past(at) < math.max(past(since_ms), 1) then return true end
    if not last then return false end
    local last_ms, last_alone = string.match(last, '^(%d+)@(.*)$')
    is_later = alone == '' and past(since_ms) > past(last_ms) or alone ~= '' and unheard == '*'
    if alone == '' and not is_later and last_alone ~= '' and last_number == '1' then
      answered(member, since, number, at, unheard)
    end
  end
  if is_later and unheard == '*' then
    answered(member, since, number, at)
    return false
  end
  return is_later
end

-- A pod found that a known key had expired. It may have looked because it heard so; `since` is empty otherwise. No report of the end of a
-- known key is answered before this, so one that is answered already was of an earlier key, and this end has no number.
local function found_expired(member, since, number, r)
  if since ~= '' and is_news(member, since, number, r) then answered(member, since, number, now_text)
  else answered_unheard(member) end
end

-- A key that was SET during a run of its timer is remembered until that has ended: its deadline, the occurrence that ran, its spec.
local function remember(member, r, deadline, spec)
  call('HSET', root .. 'meanwhile', member, deadline .. ' ' .. text(r.occurrence) .. ' ' .. spec)
end

-- Deadline and spec of such a key; nil if there is none. Another occurrence has nothing to do with it.
local function remembered(member, r)
  local held = call('HGET', root .. 'meanwhile', member)
  if not held then return nil end
  local deadline, occurrence, spec = string.match(held, '^(%d+) (%d+) (.*)$')
  if not deadline or known_deadline(member) or r and r.occurrence ~= tonumber(occurrence) then
    call('HDEL', root .. 'meanwhile', member)
    return nil
  end
  return deadline, spec
end

-- Let the timer of a key wait for it. `format` is that of a new record.
local function adopt_key(prefix, id, member, r, deadline, spec, format)
  call('HDEL', root .. 'meanwhile', member)
  local moved = r and r.waits
  if r then leave(prefix, id, r) end
  local cause = moved and 'bare-set-again' or 'bare-adopted'
  local due, body = tonumber(deadline), spec .. '\n'
  local life = r and renew(prefix, r, due, body, cause) or begin(prefix, tonumber(format), due, body)
  if not r then note(life, cause) end
  schedule(prefix, id, due)
  call('ZADD', root .. 'bare', deadline, member)
  life.status = 'w'
  write(member, life)
  return moved and 'moved' or 'adopted'
end
