#!lua flags=allow-oom
-- Make overdue timers and runs with an expired lease `unhandled`, because no live pod serves them. People see them and arm them
-- again by hand.

local bytes, cut = 0, 0
local prefix, before, most, pod = unpack(ARGV, 2, 5)
local ids = {}

-- Whether one more may be ended in this call.
local function has_room()
  if bytes > MOST_BYTES then cut = 1 end
  return cut == 0
end

local function ended(id, raw)
  ids[#ids + 1], bytes = id, bytes + #(raw or '')
end

local function abandon_due(id)
  local r, trouble, raw = read(member_of(prefix, id))
  if not r and set_aside(prefix, id, trouble, raw) then return end
  drop_trigger(prefix, id)
  call('ZREM', queue_key(prefix), id)
  if r and r.status == 's' then
    end_retrying(prefix, id, r)
    end_as('u', prefix, id, r, 'unserved', pod)
  end
  ended(id, raw)
end

local function abandon_run(id)
  local member = member_of(prefix, id)
  local lease_end = call('ZSCORE', root .. 'leases', member)
  if not lease_end or tonumber(lease_end) >= tonumber(before) or lease_of(member) then return end
  local r, trouble, raw = read(member)
  if not r and set_aside(prefix, id, trouble, raw) then return end
  -- A foreign value may lie in the place of the lease.
  call('DEL', lease_key(member))
  call('ZREM', root .. 'leases', member)
  if r and r.status == 'r' then
    r.token, r.failures = take_tokens(1), r.failures + 1
    end_as('u', prefix, id, r, 'lost-unserved', pod)
  end
  ended(id, raw)
end

if call('SISMEMBER', root .. 'paused', prefix) == 0 and not moves() and not unchecked() then
  local due = call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. before, 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    if has_room() then abandon_due(id) end
  end
  for i = 6, #ARGV do
    if has_room() then abandon_run(ARGV[i]) end
  end
  refresh_head(prefix)
end
conclude()
return {now_text, ids, cut}
