#!lua flags=allow-oom,allow-cross-slot-keys
-- Touch what is due, so that Redis deletes the trigger and lease keys and publishes their `expired` events now, and tell
-- when to come again. A timer leaves the due index only by being claimed, never by being touched.
--
-- ARGV[2]  most keys to touch in each queue
-- ARGV[3]  rank among the expired leases of the first to look at
-- Answer   {now, next, {prefix, due, prefix, due, …}, {member, …}, n, rank}: the time to come again (or '' for nothing planned),
--          the queues with timers due and the earliest due of each, the leases that have expired, how many adopted timers are
--          overdue by more than BARE_GRACE_MS: their keys went without an event; and the rank at which to go on among the
--          expired leases, 0 behind the last. Nothing of a paused queue

local most, from = tonumber(ARGV[2]), tonumber(ARGV[3])
local STALE_MS = 50
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
  -- One that is there long after is a stranger's doing and must not keep us busy.
  local there = #triggers > 0 and redis.call('EXISTS', unpack(triggers)) or 0
  if there > 0 and due[#due] + 0 > now - STALE_MS then come_again(now + 1) end
  local later = redis.call('ZRANGEBYSCORE', queue_key(prefix), text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  come_again(tonumber(later[2]))
  queues[#queues + 1] = prefix
  queues[#queues + 1] = text(math.floor(due[2] or now))
end

for _, prefix in ipairs(redis.call('ZRANGEBYSCORE', root .. 'heads', '-inf', '(' .. text(now + 1), 'LIMIT', 0, 1000)) do
  if not paused[prefix] then touch(prefix) end
end
come_again(tonumber(redis.call('ZRANGEBYSCORE', root .. 'heads', text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))

local expired = redis.call('ZRANGEBYSCORE', root .. 'leases', '-inf', '(' .. text(now), 'LIMIT', from, most)
for _, member in ipairs(expired) do
  if not paused[string.match(member, '^[^:]*')] and not is_leased(member) then orphans[#orphans + 1] = member end
end
-- Those that nobody takes, as of a paused queue, stay in front; they must not hide the others.
local go_on = #expired == most and from + most or 0
come_again(tonumber(redis.call('ZRANGEBYSCORE', root .. 'leases', text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))
-- Adopted timers: their trigger is the caller's own key.
local BARE_GRACE_MS, NO_TTL_MS = 1000, 10000
local adopted = root .. 'adopted'
for _, member in ipairs(redis.call('ZRANGEBYSCORE', adopted, '-inf', '(' .. text(now + 1), 'LIMIT', 0, most)) do
  local left = redis.call('PTTL', member)
  -- Set again, or without a TTL now: the key says when to look; the adopter will bring the record up to date.
  if left ~= -2 then
    redis.call('ZADD', adopted, text(now + (left >= 0 and left or NO_TTL_MS)), member)
  end
end
come_again(tonumber(redis.call('ZRANGEBYSCORE', adopted, text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))
local overdue = redis.call('ZCOUNT', adopted, '-inf', text(now - BARE_GRACE_MS))
return {text(now), next_look and text(math.floor(next_look)) or '', queues, orphans, overdue, go_on}
