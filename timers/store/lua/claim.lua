#!lua flags=allow-oom,allow-cross-slot-keys
-- Claim due timers, earliest first: out of the due index, lease taken with SET NX PX, attempt counted, token given.
-- Never takes one whose due time has not passed.
--
-- ARGV[2]  pod
-- ARGV[3]  lease, ms
-- ARGV[4]  cause, for the history (`event`, `sweep` …)
-- ARGV[5]  number of shards, over which a queue's running timers are counted
-- ARGV[6…] one for each queue, six words: prefix, processor that will run it (for the history), most to take, most that may run in the whole fleet (0: any), µs between
--          starts (0: any), starts that may come at once after a pause
-- Answer   {now, {looked at, wait ms, …}, {prefix, id, record, …}, {member, reason, …}}: for each queue how many due timers it
--          gave (as many as the most to take: there may be more) and how long its rate forbids the next; what was claimed;
--          what was quarantined

local pod, lease_ms, cause = ARGV[2], ARGV[3], ARGV[4]
local shards = tonumber(ARGV[5])
local now_us = time[1] * 1000000 + time[2]
local looked, claimed, bad = {}, {}, {}
local leases = {}

local function claim_one(prefix, id, token, processor)
  local member = member_of(prefix, id)
  local r, trouble, raw = read(member)
  if not r then
    quarantine(prefix, id, trouble, raw)
    bad[#bad + 1] = member
    bad[#bad + 1] = trouble
    return false
  end
  if r.status ~= 's' then
    redis.call('ZREM', queue_key(prefix), id)
    return false
  end
  if not take_lease(member, pod, token, lease_ms) then return false end
  r.status, r.token, r.attempt = 'r', token, text(r.attempt + 1)
  note(r, cause, pod, text(now - r.due), processor)
  leases[#leases + 1] = text(now + lease_ms)
  leases[#leases + 1] = member
  claimed[#claimed + 1] = prefix
  claimed[#claimed + 1] = id
  claimed[#claimed + 1] = write(member, r)
  return true
end

local function running(prefix)
  local sum = 0
  for shard = 0, shards - 1 do
    sum = sum + (redis.call('HGET', 'timers:{' .. shard .. '}:counts', 'r ' .. prefix) or 0)
  end
  return sum
end

-- Generic cell rate algorithm (ITU-T I.371): `tat` is the theoretical arrival time of the next start, in µs. Answers how
-- many may start now, and for none how many ms to wait.
local function permits(prefix, interval, burst)
  local tat = math.max(tonumber(redis.call('GET', 'timers:rate:' .. prefix)) or 0, now_us)
  local n = math.floor((now_us + burst * interval - tat) / interval)
  if n > 0 then return n, 0 end
  return 0, math.ceil((tat + interval - burst * interval - now_us) / 1000)
end

local function spend(prefix, interval, n)
  local key = 'timers:rate:' .. prefix
  local tat = math.max(tonumber(redis.call('GET', key)) or 0, now_us) + n * interval
  redis.call('SET', key, text(tat), 'PX', math.ceil((tat - now_us) / 1000) + 1)
end

-- The earliest due. Behind a backlog of more than BACKLOG_MS half a batch goes to what became due just now, so that the
-- late do not make the punctual late; of batches of one about every other, by the parity of the newest token. Not in a
-- queue that runs one at a time, whose order is its point.
local BACKLOG_MS, PUNCTUAL_MS = 10000, 1000
local function pick(queue, most, in_order)
  local due = redis.call('ZRANGEBYSCORE', queue, '-inf', '(' .. text(now + 1), 'WITHSCORES', 'LIMIT', 0, most)
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  if in_order or #ids < most then return ids end
  if tonumber(due[2]) > now - BACKLOG_MS or tonumber(due[#due]) > now - PUNCTUAL_MS then return ids end
  local turn = newest_token() % 2
  local fresh = redis.call('ZRANGEBYSCORE', queue, text(now - PUNCTUAL_MS), '(' .. text(now + 1),
    'LIMIT', 0, math.floor((most + turn) / 2))
  for i, id in ipairs(fresh) do ids[most + 1 - i] = id end
  return ids
end

local function take(prefix, ids, processor)
  local triggers, gone = {}, {}
  leases = {}
  for i, id in ipairs(ids) do triggers[i] = trigger_key(prefix, id) end
  redis.call('DEL', unpack(triggers))
  local top = take_tokens(#ids)
  for i, id in ipairs(ids) do
    if claim_one(prefix, id, text(top - #ids + i), processor) then gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call('ZREM', queue_key(prefix), unpack(gone)) end
  if #leases > 0 then redis.call('ZADD', root .. 'leases', unpack(leases)) end
  refresh_head(prefix)
  count('s', prefix, -#gone)
  count('r', prefix, #gone)
  return #gone
end

-- A queue that runs one at a time is one over all shards: its earliest due comes first, wherever it lies.
local function is_first(prefix)
  local mine = redis.call('ZRANGE', queue_key(prefix), 0, 0, 'WITHSCORES')[2]
  for shard = 0, mine and shards - 1 or -1 do
    local head = redis.call('ZRANGE', 'timers:{' .. shard .. '}:due:' .. prefix, 0, 0, 'WITHSCORES')[2]
    if head and tonumber(head) < tonumber(mine) then return false end
  end
  return true
end

local function claim_queue(prefix, processor, most, concurrency, interval, burst)
  local wait = 0
  if redis.call('SISMEMBER', root .. 'paused', prefix) == 1 then most = 0 end
  if concurrency > 0 then most = math.min(most, concurrency - running(prefix)) end
  if concurrency == 1 and shards > 1 and most > 0 and not is_first(prefix) then most = 0 end
  if interval > 0 and most > 0 then
    local allowed
    allowed, wait = permits(prefix, interval, burst)
    most = math.min(most, allowed)
  end
  local ids = most > 0 and pick(queue_key(prefix), most, concurrency == 1) or {}
  local n = #ids > 0 and take(prefix, ids, processor) or 0
  if interval > 0 and n > 0 then
    spend(prefix, interval, n)
    if n == most then wait = select(2, permits(prefix, interval, burst)) end
  end
  looked[#looked + 1] = #ids
  looked[#looked + 1] = wait
end

for i = 6, #ARGV do
  local prefix, processor, most, concurrency, interval, burst = string.match(ARGV[i], '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d+)$')
  claim_queue(prefix, processor, tonumber(most), tonumber(concurrency), tonumber(interval), tonumber(burst))
end
conclude()
return {text(now), looked, claimed, bad}
