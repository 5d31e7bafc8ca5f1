#!lua flags=no-writes
-- A page of timers from one index, sorted by (score, member), that begins after a place in it. The place need not exist any
-- more: it is found by its value, so pages neither skip nor repeat entries that do not move. O(log n + page).
--
-- ARGV[2]  index: `due` or the letter of a finished status
-- ARGV[3]  prefix
-- ARGV[4]  lowest and ARGV[5] highest score
-- ARGV[6]  score of the place, or '' for the first page   ARGV[7] its member
-- ARGV[8]  most to answer   ARGV[9] bytes of records after which the page ends, however few they are
-- Answer   {now, {id, score, record or false, …}, 1 if there are more, else 0}; false for an entry without a record

local prefix, most, most_bytes = ARGV[3], tonumber(ARGV[8]), tonumber(ARGV[9])
local index = ARGV[2] == 'due' and queue_key(prefix) or finished_key(ARGV[2], prefix)

-- Redis sorts members with the same score by their bytes, so a binary search among their ranks finds the place.
local function rank_after(score, member)
  local low = call('ZCOUNT', index, '-inf', '(' .. score)
  local high = call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZRANGE', index, middle, middle)[1] <= member then low = middle + 1 else high = middle end
  end
  return low
end

local start = ARGV[6] == '' and call('ZCOUNT', index, '-inf', '(' .. ARGV[4]) or rank_after(ARGV[6], ARGV[7])
local found = call('ZRANGE', index, start, start + most, 'WITHSCORES')
local answer, bytes, more = {}, 0, 0
for i = 1, #found, 2 do
  if ARGV[5] ~= '+inf' and tonumber(found[i + 1]) > tonumber(ARGV[5]) then break end
  if #answer == 3 * most or bytes >= most_bytes then
    more = 1
    break
  end
  local member = member_of(prefix, found[i])
  local raw = call('HGET', record_key(member), member)
  bytes = bytes + #(raw or '')
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = found[i + 1]
  answer[#answer + 1] = raw
end
return {text(now), answer, more}
