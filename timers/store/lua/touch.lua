#!lua flags=allow-oom
-- Touch due trigger keys, so that Redis deletes them and publishes their `expired` events now, and answer when to come again.
-- Touching moves no timer; only a claim takes a due one out of the due index.

local most, rank, joins = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] ~= nil
local STALE_MS = 50
local BACKLOG_MS = 1000   -- a queue that is later than this is not touched again: its events came, or the sweep replaces them
local GRACE_MS = 250
local next_poll = nil
local queues = {}

local function come_again(at)
  if at and at >= 0 and (not next_poll or at < next_poll) then next_poll = at end
end

-- The first due timers of a queue with their scores, at most `left`. Most queues have one, which takes one command.
local function due_of_queue(queue, left)
  local first = call('ZRANGE', queue, 0, 1, 'WITHSCORES')
  local next_due = tonumber(first[4])
  if next_due and next_due < now + 1 and left > 1 then
    first = call('ZRANGEBYSCORE', queue, '-inf', '(' .. text(now + 1), 'WITHSCORES', 'LIMIT', 0, left)
    next_due = tonumber(call('ZRANGEBYSCORE', queue, text(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  else
    first[3], first[4] = nil, nil
  end
  come_again(next_due)
  return first
end

-- Touch up to `left` trigger keys of a queue; answer how many.
local function touch(prefix, left)
  local due, triggers = due_of_queue(queue_key(prefix), left), {}
  for i = 1, #due, 2 do triggers[#triggers + 1] = trigger_key(prefix, due[i]) end
  -- The trigger of a timer that was armed just now ends later than it is due, and needs a second poll. A key that is there long
  -- after was put there by another program and must not keep us busy.
  local there = #triggers > 0 and tonumber(redis.pcall('EXISTS', unpack(triggers))) or 0
  if there > 0 and tonumber(due[#due]) > now - STALE_MS then come_again(now + 1) end
  return #triggers
end

local function poll_queue(prefix, head, left)
  if not is_member(prefix .. ':x') then
    call('ZREM', root .. 'heads', prefix)
    return 0
  end
  queues[#queues + 1], queues[#queues + 2] = prefix, text(math.max(math.floor(head), 0))
  return head > now - BACKLOG_MS and touch(prefix, left) or 0
end

-- Look at due queues until the budget is used up; answer the rank to go on at.
local function poll_queues()
  local heads = call('ZREVRANGEBYSCORE', root .. 'heads', '(' .. text(now + 1), '-inf', 'WITHSCORES',
    'LIMIT', rank, most)
  local left = most
  for i = 1, #heads, 2 do
    if left == 0 then return rank + (i - 1) / 2 end
    left = left - poll_queue(heads[i], tonumber(heads[i + 1]), left)
  end
  return #heads == 2 * most and rank + most or 0
end

-- Let queues whose block is over go on. One with due timers stays blocked for GRACE_MS more, in which it is named, so that a pod
-- can ask for it and block it again before anybody takes its timers for late. Half a millisecond in the time marks such a queue.
-- For a pod that joins, the blocks are over that last longest, except pauses: it may have other limits, and who set them may be gone.
local function end_blocks()
  local grace = text(now + GRACE_MS) .. '.5'
  local ending = joins and call('ZREVRANGEBYSCORE', root .. 'blocked', '(+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, most)
    or call('ZRANGEBYSCORE', root .. 'blocked', '-inf', grace, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #ending, 2 do
    local prefix, until_ms = ending[i], tonumber(ending[i + 1])
    local head = tonumber(call('ZSCORE', root .. 'held', prefix))
    local is_marked, is_due = until_ms % 1 == 0.5, head and head < now + 1 and is_member(prefix .. ':x')
    local is_over = until_ms <= now or (joins and not is_marked)
    if is_over and is_due and not is_marked then
      call('ZADD', root .. 'blocked', grace, prefix)
      is_marked = true
    elseif is_over or (is_marked and not is_due) then
      block(prefix, nil)
      is_marked = false
    end
    if is_marked then queues[#queues + 1], queues[#queues + 2] = prefix, text(math.max(math.floor(head), 0)) end
  end
end

local function lowest(index, from)
  local found = from and call('ZRANGEBYSCORE', root .. index, text(from), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    or call('ZRANGE', root .. index, '0', '0', 'WITHSCORES')
  return tonumber(found[2])
end

-- Most polls find that nothing is due, which takes one command for each index.
local blocked, head, lease, go_on, lost = lowest('blocked'), lowest('heads'), lowest('leases'), 0, 0
if blocked and (joins or blocked < now + GRACE_MS + 1) then
  end_blocks()
  blocked, head = lowest('blocked'), lowest('heads')
end
if head and head < now + 1 then go_on, head = poll_queues(), lowest('heads', now + 1) end
if lease and lease < now then lost, lease = 1, lowest('leases', now) end
come_again(blocked and math.ceil(blocked))
come_again(head)
come_again(lease)
if next_poll and next_poll >= 2 ^ 53 then next_poll = nil end -- out of reach: a foreign score
return {now_text, next_poll and text(math.floor(next_poll)) or '', queues, go_on, lost}
