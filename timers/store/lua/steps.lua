#!lua flags=no-writes
-- Count the entries of some indexes in each of some steps of time, all of one length: from now on, or with `past` up to the end of
-- the current one. Changes nothing.

local FEW = 64     -- entries of an index that are read; more are counted, in O(log n) a step
local past, width, steps = ARGV[2] == 'past', tonumber(ARGV[3]), tonumber(ARGV[4])
local first = past and (math.floor(now / width) - steps + 1) * width or now
local counts = {}

local function beginning(step) return text(first + step * width) end

local function tally(index, place)
  local n = call('ZCOUNT', index, beginning(0), '(' .. beginning(steps))
  for step = 1, steps do
    counts[place + step] = n > FEW and call('ZCOUNT', index, beginning(step - 1), '(' .. beginning(step)) or 0
  end
  if n == 0 or n > FEW then return end
  local entries = call('ZRANGEBYSCORE', index, beginning(0), '(' .. beginning(steps), 'WITHSCORES')
  for i = 2, #entries, 2 do
    local step = place + math.floor((entries[i] - first) / width) + 1
    counts[step] = counts[step] + 1
  end
end

for i = 5, #ARGV do tally(root .. ARGV[i], (i - 5) * steps) end
return {now_text, counts}
