#!lua flags=no-writes
-- A page of timers from one index, from the highest score down, that begins before a place in it. The place need not exist any
-- more. Changes nothing.
--
-- ARGV[2]  index: `due` or the letter of a finished status   ARGV[3] prefix
-- ARGV[4]  score of the place, or '' for the first page   ARGV[5] id of the place; of the same score, only lower ids follow
-- ARGV[6]  most to answer
-- Answer   {now, {id, score, record or false, …}}; false for an entry without a record

local prefix, most = ARGV[3], tonumber(ARGV[6])
local index = ARGV[2] == 'due' and queue_key(prefix) or finished_key(ARGV[2], prefix)

-- Redis sorts ids with the same score by their bytes, so a binary search among their ranks finds the place.
local function rank_before(score, id)
  local low = call('ZCOUNT', index, '-inf', '(' .. score)
  local high = call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZRANGE', index, middle, middle)[1] < id then low = middle + 1 else high = middle end
  end
  return low - 1
end

local last = ARGV[4] == '' and call('ZCARD', index) - 1 or rank_before(ARGV[4], ARGV[5])
local answer = {}
if last < 0 then return {text(now), answer} end
local found = call('ZRANGE', index, math.max(0, last - most + 1), last, 'WITHSCORES')
for i = #found - 1, 1, -2 do
  local member = member_of(prefix, found[i])
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = found[i + 1]
  answer[#answer + 1] = call('HGET', record_key(member), member)
end
return {text(now), answer}
