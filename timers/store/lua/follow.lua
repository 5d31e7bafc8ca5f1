#!lua flags=allow-oom
-- What the ledger does not have yet. Takes away the notes of what it has now, where they are still the same, and answers further
-- ones with the records; before them, how far the shard and the ledger have come to agree. From the first call on, all changes are noted.
-- A run that began within FRESH_US is left for later: most have ended by then, and their start and end are copied as one. So is what
-- comes after MOST_BYTES of records; whoever has copied those finds it from the start.

local AGREED_MS = 10000  -- how often a shard says that they still agree
local FRESH_US = 300000  -- as FRESH_SECONDS of the pod. If it were longer, it would look as if nobody copied (`HELP_SECONDS`)
local bytes = 0
local changed = root .. 'changed'
local cursor, most, done = ARGV[2], ARGV[3], tonumber(ARGV[4])

local members, same = {unpack(ARGV, 5, 4 + done)}, {}
if done > 0 then
  for i, noted in ipairs(call('HMGET', changed, unpack(members))) do
    if noted == ARGV[4 + done + i] then same[#same + 1] = members[i] end
  end
end
if #same > 0 then call('HDEL', changed, unpack(same)) end
if most == '0' then return {now_text} end

local agreed, known = tonumber(ARGV[5 + 2 * done]), redis.pcall('GET', root .. 'agreed')
if agreed > 0 and agreed > (tonumber(type(known) == 'string' and known) or 0) then call('SET', root .. 'agreed', ARGV[5 + 2 * done]) end

local function is_empty()
  local buckets = {}
  for i = 0, 255 do buckets[i + 1] = bucket_key(i) end
  return call('EXISTS', unpack(buckets)) == 0
end

-- A token is the time of its start, in microseconds, or a little later.
local function is_fresh(raw)
  if not raw or #raw < HEAD_BYTES or string.sub(raw, 1, 3) ~= '2 r' then return false end
  return now_us - select(5, struct.unpack(HEAD, raw, 4)) < FRESH_US
end

if not call('HGET', root .. 'hooks', '@ledger') then
  set_stage(is_empty() and 'rebuild -' or 'restore -')  -- a `rebuild` is as a `restore`, but nothing has to be copied afterwards
end
local page, answer, fresh, large = call('HSCAN', changed, cursor, 'COUNT', most), {}, 0, 0
for i = 1, #page[2], 2 do
  local member = page[2][i]
  local raw = bytes <= MOST_BYTES and call('HGET', record_key(member), member)
  if bytes > MOST_BYTES then large = large + 1
  elseif is_fresh(raw) then
    fresh, bytes = fresh + 1, bytes + #raw
  else
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = member, page[2][i + 1], raw
    bytes = bytes + #(raw or '')
  end
end
local reached = stage()
local at = tonumber(string.match(reached, '^whole (%d+)'))
if at and now - at > AGREED_MS then set_stage('whole ' .. now_text) end
return {now_text, reached, life(), page[1], answer, call('HLEN', changed), fresh, large}
