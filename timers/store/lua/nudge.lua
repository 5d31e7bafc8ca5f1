-- Touch what is due, so that Redis deletes the trigger and lease keys and publishes their `expired` events now, and tell
-- when to come again. Moves nothing: a timer leaves the due index only by being claimed.
--
-- ARGV[2]  most keys to touch in each queue
-- Answer   {now, next, {prefix, due, prefix, due, …}, {member, …}}: the time to come again (or '' for nothing planned), the
--          queues with timers due and the earliest due of each, the leases that have expired

local most = tonumber(ARGV[2])
local next_look = nil
local queues, orphans = {}, {}

local function come_again(at)
  if at and (not next_look or at < next_look) then next_look = at end
end

local paused = {}
for _, prefix in ipairs(redis.call('SMEMBERS', root .. 'paused')) do paused[prefix] = true end

local function touch(prefix)
  local due = redis.call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. text(now + 1), 'WITHSCORES', 'LIMIT', 0, most)
  local triggers = {}
  for i = 1, #due, 2 do triggers[#triggers + 1] = trigger_key(prefix, due[i]) end
  -- Redis expires strictly after the deadline: a key of this very millisecond is still there and needs a second look.
  if #triggers > 0 and redis.call('EXISTS', unpack(triggers)) > 0 then come_again(now + 1) end
  local later = redis.call('ZRANGEBYSCORE', queue_key(prefix), text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  come_again(tonumber(later[2]))
  queues[#queues + 1] = prefix
  queues[#queues + 1] = text(math.floor(due[2] or now))
end

for _, prefix in ipairs(redis.call('ZRANGEBYSCORE', root .. 'heads', '-inf', '(' .. text(now + 1), 'LIMIT', 0, 1000)) do
  if not paused[prefix] then touch(prefix) end
end
come_again(tonumber(redis.call('ZRANGEBYSCORE', root .. 'heads', text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))

for _, member in ipairs(redis.call('ZRANGEBYSCORE', root .. 'leases', '-inf', '(' .. text(now), 'LIMIT', 0, most)) do
  if redis.call('EXISTS', lease_key(member)) == 0 then orphans[#orphans + 1] = member end
end
come_again(tonumber(redis.call('ZRANGEBYSCORE', root .. 'leases', text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))
return {text(now), next_look and text(math.floor(next_look)) or '', queues, orphans}
