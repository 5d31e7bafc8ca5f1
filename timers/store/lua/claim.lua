#!lua flags=allow-oom
-- Claim due timers, earliest first: take each out of the due index, take its lease with SET NX PX, count the attempt, give a
-- token. Never takes a timer whose due time has not passed.

local pod, lease_ms, cause, in_order = ARGV[2], ARGV[3], ARGV[4], ARGV[5] ~= ''
local more, claimed, bad, newer = {}, {}, {}, {}
local leases, denied, lease_end = {}, {}, text(now + lease_ms)

-- Answers the bytes of the record, or false.
local function claim_one(prefix, id, token, processor)
  local member = member_of(prefix, id)
  local r, trouble, raw = read(member)
  if not r then
    leave_out(prefix, id, trouble, raw, newer, bad)
    return false
  end
  if r.status ~= 's' or r.waits then
    call('ZREM', queue_key(prefix), id)
    return false
  end
  if r.due > now then
    -- Another program changed the score. The record is the truth.
    call('ZREM', queue_key(prefix), id)
    schedule(prefix, id, r.due)
    return false
  end
  if not take_lease(member, pod, text(token), lease_ms) then return false end
  end_retrying(prefix, id, r)
  r.status, r.token, r.attempt = 'r', token, r.attempt + 1
  note(r, cause, pod, now - r.due, processor)
  local l, c = #leases, #claimed
  leases[l + 1], leases[l + 2] = lease_end, member
  claimed[c + 1] = prefix
  claimed[c + 2] = id
  claimed[c + 3] = write(member, r)
  return #raw
end

-- The earliest due of a queue, and one more if there are more. Behind a backlog of more than BACKLOG_MS, half a batch goes to
-- timers that became due just now, so that late timers do not make punctual ones late. Of batches of one, about every other
-- does; the parity of the newest token decides. A queue that runs one at a time keeps its order.
local BACKLOG_MS, PUNCTUAL_MS = 10000, 1000
local function due_of_queue(prefix, most)
  local queue = queue_key(prefix)
  local ids = call('ZRANGEBYSCORE', queue, '-inf', '(' .. text(now + 1), 'LIMIT', '0', text(most + 1))
  if in_order or #ids <= most then return ids end
  local function is_within(id, ms) return tonumber(call('ZSCORE', queue, id)) > now - ms end
  if is_within(ids[1], BACKLOG_MS) or is_within(ids[#ids], PUNCTUAL_MS) then return ids end
  local turn = newest_token() % 2
  local fresh = call('ZRANGEBYSCORE', queue, text(now - PUNCTUAL_MS), '(' .. text(now + 1),
    'LIMIT', 0, math.floor((most + turn) / 2))
  for i, id in ipairs(fresh) do ids[most + 1 - i] = id end
  return ids
end

-- What to take from a queue: {prefix, processor, ids, whether more are due}.
local function pick(prefix, processor, most)
  if most == 0 or call('SISMEMBER', root .. 'paused', prefix) == 1 then return {prefix, processor, {}} end
  local ids = due_of_queue(prefix, most)
  if #ids <= most then return {prefix, processor, ids} end
  ids[#ids] = nil
  return {prefix, processor, ids, true}
end

-- Takes them until there is no room for more bytes of records; the rest is left for the next call. Answers the room that is left.
local function take(prefix, processor, ids, has_more, token, room)
  local gone, left = {}, #newer
  for i, id in ipairs(ids) do
    if room < 0 then
      has_more = true
      break
    end
    local bytes = claim_one(prefix, id, token + i, processor)
    if bytes then
      gone[#gone + 1] = id
      room = room - bytes
    end
  end
  if #gone > 0 then call('ZREM', queue_key(prefix), unpack(gone)) end
  -- Whoever is told of more asks again at once, and would get the same batch if all of it had to be left.
  if has_more and #newer - left < 2 * #ids then more[#more + 1] = prefix end
  refresh_head(prefix)
  count('s', prefix, -#gone)
  count('r', prefix, #gone)
  return room
end

local function triggers_of(queues)
  local triggers = {}
  for _, queue in ipairs(queues) do
    for _, id in ipairs(queue[3]) do triggers[#triggers + 1] = trigger_key(queue[1], id) end
  end
  return triggers
end

local picked = {}
for i = 6, #ARGV do
  local prefix, processor, most = string.match(ARGV[i], '^(%S+) (%S+) (%d+)$')
  picked[#picked + 1] = pick(prefix, processor, tonumber(most))
end
local triggers = triggers_of(picked)
if #triggers > 0 and (moves() or unchecked()) then return {now_text, more, claimed, bad, denied, newer} end
if #triggers > 0 and refused('DEL', unpack(triggers)) then
  for _, queue in ipairs(picked) do
    local refusal = #queue[3] > 0 and refused('DEL', unpack(triggers_of({queue})))
    if refusal then
      queue[3] = {}
      denied[#denied + 1], denied[#denied + 2] = queue[1], refusal
    end
  end
end
local token = #triggers > 0 and take_tokens(#triggers) - #triggers
local room = 1638400   -- as much as 25 timers with payloads of 64 KiB
for _, queue in ipairs(picked) do
  room = take(queue[1], queue[2], queue[3], queue[4], token, room)
  token = token and token + #queue[3]
end
if #leases > 0 then call('ZADD', root .. 'leases', unpack(leases)) end
conclude()
return {now_text, more, claimed, bad, denied, newer}
