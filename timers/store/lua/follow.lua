#!lua flags=allow-oom
-- What the ledger does not have yet. Takes away the notes of what it has now, where they are still the same, and answers further
-- ones with the records; before them, how far the shard and the ledger have come to agree. From the first call on, changes are noted.

local AGREED_MS = 10000  -- how often a shard says that they still agree
local changed = root .. 'changed'
local cursor, most, first = ARGV[2], ARGV[3], ARGV[4]
for i = 5, #ARGV, 2 do
  if call('HGET', changed, ARGV[i]) == ARGV[i + 1] then call('HDEL', changed, ARGV[i]) end
end
call('HSETNX', root .. 'hooks', '@ledger', first)
local page, answer = call('HSCAN', changed, cursor, 'COUNT', most), {}
for i = 1, #page[2], 2 do
  local member, noted = page[2][i], page[2][i + 1]
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = member, noted, call('HGET', record_key(member), member)
end
local reached, server = stage()
local at = tonumber(string.match(reached, '^whole (%d+)'))
if at and now - at > AGREED_MS then call('HSET', root .. 'hooks', '@ledger', 'whole ' .. now_text .. ' ' .. server) end
return {now_text, reached, page[1], answer, call('HLEN', changed)}
