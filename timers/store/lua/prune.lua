#!lua flags=allow-oom
-- Remove finished records whose retention is over, oldest first. DEL and HDEL publish nothing under `Ex`. The service's own
-- completed timers, `timers.…`, stay for at most CALLS_MS, because each timer of a caller may have several.
--
-- ARGV[2]  retention, ms
-- ARGV[3]  most records to remove
-- Answer   {now, removed}

local CALLS_MS = 3600000
local retention_ms, left, removed = tonumber(ARGV[2]), tonumber(ARGV[3]), 0

local function prune(status, prefix)
  local index = finished_key(status, prefix)
  local is_call = status == 'c' and string.sub(prefix, 1, 7) == 'timers.'
  local oldest = now - (is_call and math.min(retention_ms, CALLS_MS) or retention_ms)
  local ids = call('ZRANGEBYSCORE', index, '-inf', '(' .. text(oldest), 'LIMIT', 0, left)
  if #ids == 0 then return end
  for _, id in ipairs(ids) do
    local member = member_of(prefix, id)
    call('HDEL', record_key(member), member)
  end
  call('ZREM', index, unpack(ids))
  count(status, prefix, -#ids)
  left, removed = left - #ids, removed + #ids
end

for _, counted in ipairs(call('HKEYS', root .. 'counts')) do
  local status, prefix = string.match(counted, '^([cfux]) (.+)$')
  if status and left > 0 then prune(status, prefix) end
end
conclude()
return {text(now), removed}
