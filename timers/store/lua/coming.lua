#!lua flags=no-writes
-- Count the timers of some queues that fall due in each of the next steps of time, all of one length. Changes nothing.
--
-- Reads the scores of a queue with few timers due, and counts one with many in O(log n) a step.

local FEW = 64
local width, steps = tonumber(ARGV[2]), tonumber(ARGV[3])
local counts = {}
for step = 1, steps do counts[step] = 0 end

local function below(step) return '(' .. text(now + step * width) end

local function read(queue)
  local due = call('ZRANGEBYSCORE', queue, now_text, below(steps), 'WITHSCORES')
  for i = 2, #due, 2 do
    local step = math.floor((due[i] - now) / width) + 1
    counts[step] = (counts[step] or 0) + 1
  end
end

local function tally(queue)
  for step = 1, steps do
    counts[step] = counts[step] + call('ZCOUNT', queue, text(now + (step - 1) * width), below(step))
  end
end

for i = 4, #ARGV do
  local queue = queue_key(ARGV[i])
  local n = call('ZCOUNT', queue, now_text, below(steps))
  if n > FEW then tally(queue) elseif n > 0 then read(queue) end
end
return {now_text, counts}
