#!lua flags=allow-oom
-- Timers of a queue that no live pod serves: out of the due index, and runs whose pod let the lease expire, out of `running`;
-- to be seen and armed again by hand. Such a run counts as failed, and gets a new token, so that its pod, if it lives, is told.
-- Nothing of a paused queue.
--
-- ARGV[2]  prefix
-- ARGV[3]  due, or lease expired, before, epoch ms
-- ARGV[4]  most to take of the due index
-- ARGV[5]  pod that found it
-- ARGV[6…] ids of the runs
-- Answer   {now, {id, …}}: the due, then the runs

local prefix, before, most, pod = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ids = {}

local function unhandled(id, member, r, said)
  local from = r.status
  r.status = 'u'
  note(r, said, pod)
  redis.call('ZADD', finished_key('u', prefix), text(now), id)
  recount(from, 'u', prefix)
  write(member, r)
end

local function abandon_due(id)
  local member = member_of(prefix, id)
  local r, trouble, raw = read(member)
  if not r then quarantine(prefix, id, trouble, raw) end
  unschedule(prefix, id)
  if r and r.status == 's' then unhandled(id, member, r, 'unserved') end
  ids[#ids + 1] = id
end

local function abandon_run(id)
  local member = member_of(prefix, id)
  local ended = redis.call('ZSCORE', root .. 'leases', member)
  if not ended or tonumber(ended) >= tonumber(before) or lease_of(member) then return end
  local r, trouble, raw = read(member)
  if not r then quarantine(prefix, id, trouble, raw) end
  -- In the lease's place may be a stranger's value.
  redis.call('DEL', lease_key(member))
  redis.call('ZREM', root .. 'leases', member)
  if r and r.status == 'r' then
    r.token, r.failures = text(take_tokens(1)), text(r.failures + 1)
    unhandled(id, member, r, 'lost-unserved')
  end
  ids[#ids + 1] = id
end

if redis.call('SISMEMBER', root .. 'paused', prefix) == 0 then
  local due = redis.call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. before, 'LIMIT', 0, most)
  for _, id in ipairs(due) do abandon_due(id) end
  for i = 6, #ARGV do abandon_run(ARGV[i]) end
  refresh_head(prefix)
end
conclude()
return {text(now), ids}
