#!lua flags=no-writes
-- Add up what makes two copies of some buckets comparable, whatever the number of shards: by status and prefix, how many records
-- there are and the sum of 52 bits of their hashes. The format of a record does not count.

local bucket, last, cursor, most = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local numbers, sums, seen = {}, {}, 0

local function add(member, raw)
  seen = seen + 1
  local r = parse(raw)
  if not r or not is_member(member) then return end
  local name = (r.waits and 'w' or r.status) .. ' ' .. string.match(member, '^[^:]*')
  r.format, r.status = 2, string.sub(name, 1, 1)
  local hash = tonumber(string.sub(redis.sha1hex(member .. '\n' .. compose(r)), 1, 13), 16)
  numbers[name], sums[name] = (numbers[name] or 0) + 1, ((sums[name] or 0) + hash) % 2 ^ 52
end

bucket, cursor = walk(bucket, last, cursor, most, add, function() return seen >= most end)
local answer = {}
for name, n in pairs(numbers) do
  local place = #answer
  answer[place + 1], answer[place + 2], answer[place + 3] = name, n, text(sums[name])
end
return {now_text, bucket, cursor, answer}
