#!lua flags=no-writes
-- A page of timers from one index, sorted by (score, id), that begins after a place in it. The place need not exist any more:
-- it is found by its value, so pages neither skip nor repeat entries that do not move. O(log n + page).
--
-- ARGV[2]  index: `due`, the letter of a finished status, or `t` for retrying
-- ARGV[3]  prefix
-- ARGV[4]  lowest and ARGV[5] highest score
-- ARGV[6]  score of the place, or '' for the first page   ARGV[7] its id
-- ARGV[8]  most to answer   ARGV[9] bytes of records after which the page ends, however few they are
-- ARGV[10] `newest` for the highest score first, or ''   ARGV[11] `progress` for that line of the records alone, or ''
-- Answer   {now, {id, score, record or false, …}, 1 if there are more, else 0}; false for an entry without a record

local prefix, most, most_bytes, newest = ARGV[3], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == 'newest'
local index = ARGV[2] == 'due' and queue_key(prefix) or finished_key(ARGV[2], prefix)
local last = newest and ARGV[4] or ARGV[5]
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

local start
if ARGV[6] ~= '' then start = below(ARGV[6], ARGV[7])
else start = call('ZCOUNT', index, '-inf', newest and ARGV[5] or '(' .. ARGV[4]) end
local found
if newest then
  start = call('ZCOUNT', index, '-inf', '+inf') - start
  found = call('ZRANGE', index, start, start + most, 'REV', 'WITHSCORES')
else
  found = call('ZRANGE', index, start, start + most, 'WITHSCORES')
end

local function record_of(member)
  if ARGV[11] ~= 'progress' then return call('HGET', record_key(member), member) end
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
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = found[i + 1]
  answer[#answer + 1] = raw
end
return {text(now), answer, more}
