#!lua flags=no-writes
-- A page of timers from one index, sorted by (score, id), that begins after a place in it. The place need not exist any more:
-- it is found by its value, so pages neither skip nor repeat entries that do not move. O(log n + page).

local kind, prefix, lowest, highest, after_score, after_id, most, most_bytes, order, part = unpack(ARGV, 2)
local newest = order == 'newest'
most, most_bytes = tonumber(most), tonumber(most_bytes)
local index = kind == 'due' and queue_key(prefix) or finished_key(kind, prefix)
local last = newest and lowest or highest
local limit = not string.find(last, 'inf', 1, true) and tonumber(last)

-- How many entries lie below the place, with it if the page goes up. Redis sorts ids with the same score by their bytes, so a
-- binary search among their ranks finds the place.
local function below(score, id)
  local low = call('ZCOUNT', index, '-inf', '(' .. score)
  local high = call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = call('ZRANGE', index, middle, middle)[1]
    if there < id or there == id and not newest then low = middle + 1 else high = middle end
  end
  return low
end

local start = after_score ~= '' and below(after_score, after_id)
  or call('ZCOUNT', index, '-inf', newest and highest or '(' .. lowest)
if newest then start = call('ZCOUNT', index, '-inf', '+inf') - start end
local found = call('ZRANGE', index, start, start + most, 'WITHSCORES', unpack(newest and {'REV'} or {}))

local function record_of(member)
  if part ~= 'progress' then return call('HGET', record_key(member), member) end
  local r = read(member)
  return r and string.match(body_of(r), '^[^\n]*\n([^\n]*)') or false
end

local answer, bytes, more = {}, 0, 0
for i = 1, #found, 2 do
  local score = tonumber(found[i + 1])
  if limit and (newest and score < limit or not newest and score > limit) then break end
  if #answer == 3 * most or bytes >= most_bytes then
    more = 1
    break
  end
  local raw = record_of(member_of(prefix, found[i]))
  bytes = bytes + #(raw or '')
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = found[i], found[i + 1], raw
end
return {now_text, answer, more}
