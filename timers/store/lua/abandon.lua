#!lua flags=allow-oom
-- Make overdue timers and runs with an expired lease `unhandled`, because no live pod serves them. People see them and arm them
-- again by hand.

local prefix, before, most, pod = unpack(ARGV, 2, 5)
local ids = {}

local function abandon_due(id)
  local r, trouble, raw = read(member_of(prefix, id))
  if not r and set_aside(prefix, id, trouble, raw) then return end
  drop_trigger(prefix, id)
  call('ZREM', queue_key(prefix), id)
  if r and r.status == 's' then
    end_retrying(prefix, id, r)
    end_as('u', prefix, id, r, 'unserved', pod)
  end
  ids[#ids + 1] = id
end

local function abandon_run(id)
  local member = member_of(prefix, id)
  local ended = call('ZSCORE', root .. 'leases', member)
  if not ended or tonumber(ended) >= tonumber(before) or lease_of(member) then return end
  local r, trouble, raw = read(member)
  if not r and set_aside(prefix, id, trouble, raw) then return end
  -- A foreign value may lie in the place of the lease.
  call('DEL', lease_key(member))
  call('ZREM', root .. 'leases', member)
  if r and r.status == 'r' then
    r.token, r.failures = take_tokens(1), r.failures + 1
    end_as('u', prefix, id, r, 'lost-unserved', pod)
  end
  ids[#ids + 1] = id
end

if call('SISMEMBER', root .. 'paused', prefix) == 0 and not moves() and not unchecked() then
  local due = call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. before, 'LIMIT', 0, most)
  for _, id in ipairs(due) do abandon_due(id) end
  for i = 6, #ARGV do abandon_run(ARGV[i]) end
  refresh_head(prefix)
end
conclude()
return {now_text, ids}
