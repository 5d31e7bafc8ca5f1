#!lua flags=allow-oom
-- Claim due timers, earliest first: out of the due index, lease taken with SET NX PX, attempt counted, token given.
-- Never takes one whose due time has not passed.
--
-- ARGV[2]  pod
-- ARGV[3]  lease, ms
-- ARGV[4]  cause, for the history (`event`, `sweep` …)
-- ARGV[5]  `in order` for queues that run one at a time, or ''
-- ARGV[6…] one for each queue, three words: prefix, processor that will run it (for the history), most to take
-- Answer   {now, {looked at, …}, {prefix, id, record, …}, {member, reason, …}}: for each queue how many due timers it gave (as
--          many as the most to take: there may be more); what was claimed; what was quarantined

local pod, lease_ms, cause, in_order = ARGV[2], ARGV[3], ARGV[4], ARGV[5] ~= ''
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
  if tonumber(r.due) > now then
    -- A stranger's score: the record is the truth.
    redis.call('ZREM', queue_key(prefix), id)
    schedule(prefix, id, r.due)
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

-- The earliest due. Behind a backlog of more than BACKLOG_MS half a batch goes to what became due just now, so that the
-- late do not make the punctual late; of batches of one about every other, by the parity of the newest token. Not in a
-- queue that runs one at a time, whose order is its point.
local BACKLOG_MS, PUNCTUAL_MS = 10000, 1000
local function pick(queue, most)
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
end

local function claim_queue(prefix, processor, most)
  if redis.call('SISMEMBER', root .. 'paused', prefix) == 1 then most = 0 end
  local ids = most > 0 and pick(queue_key(prefix), most) or {}
  if #ids > 0 then take(prefix, ids, processor) elseif most > 0 then refresh_head(prefix) end
  looked[#looked + 1] = #ids
end

for i = 6, #ARGV do
  local prefix, processor, most = string.match(ARGV[i], '^(%S+) (%S+) (%d+)$')
  claim_queue(prefix, processor, tonumber(most))
end
conclude()
return {text(now), looked, claimed, bad}
