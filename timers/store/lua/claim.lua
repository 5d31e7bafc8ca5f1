-- Claim due timers, earliest first: out of the due index, lease taken with SET NX PX, attempt counted, token given.
-- Never takes one whose due time has not passed.
--
-- ARGV[2]  pod
-- ARGV[3]  lease, ms
-- ARGV[4]  cause, for the history (`event`, `sweep`)
-- ARGV[5…] two for each queue: prefix, most to take
-- Answer   {now, {looked at, …}, {prefix, id, record, …}, {member, reason, …}}: how many due timers each queue gave (as many
--          as the most to take: there may be more), what was claimed, what was quarantined

local pod, lease_ms, cause = ARGV[2], ARGV[3], ARGV[4]
local looked, claimed, bad = {}, {}, {}
local leases = {}

local function claim_one(prefix, id, token)
  local member = member_of(prefix, id)
  local r, reason = read(member)
  if not r or r.status ~= 's' then
    reason = reason or ('in the due index with status ' .. r.status)
    quarantine(member, reason)
    bad[#bad + 1] = member
    bad[#bad + 1] = reason
    return true
  end
  if not redis.call('SET', lease_key(member), pod .. ' ' .. token, 'NX', 'PX', lease_ms) then return false end
  r.status, r.token, r.attempt = 'r', token, text(r.attempt + 1)
  note(r, pod, text(now - r.due), cause)
  leases[#leases + 1] = text(now + lease_ms)
  leases[#leases + 1] = member
  claimed[#claimed + 1] = prefix
  claimed[#claimed + 1] = id
  claimed[#claimed + 1] = write(member, r)
  return true
end

local function claim_queue(prefix, most)
  leases = {}
  local ids = redis.call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. text(now + 1), 'LIMIT', 0, most)
  looked[#looked + 1] = #ids
  if #ids == 0 then return end
  -- Freeing first: a script whose first write frees memory is let through when the server is at maxmemory.
  local triggers, gone, before = {}, {}, #claimed
  for i, id in ipairs(ids) do triggers[i] = trigger_key(prefix, id) end
  redis.call('DEL', unpack(triggers))
  local top = take_tokens(#ids)
  for i, id in ipairs(ids) do
    if claim_one(prefix, id, text(top - #ids + i)) then gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call('ZREM', queue_key(prefix), unpack(gone)) end
  if #leases > 0 then redis.call('ZADD', root .. 'leases', unpack(leases)) end
  refresh_head(prefix)
  local n = (#claimed - before) / 3
  count('s', prefix, -#gone)
  count('r', prefix, n)
end

for i = 5, #ARGV, 2 do claim_queue(ARGV[i], ARGV[i + 1]) end
conclude()
return {text(now), looked, claimed, bad}
