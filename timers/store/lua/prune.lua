#!lua flags=allow-oom
-- Remove finished records whose retention is over, of a bounded number of prefixes, the oldest of each first. DEL and HDEL publish
-- nothing under `Ex`. The service's own timers, `timers.…`, stay no longer than completed ones of callers, and its completed ones for
-- at most CALLS_MS, because each timer of a caller may have several.

local CALLS_MS = 3600000
local ended_ms, failed_ms, left, looks, cursor = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local removed, cut, bytes = 0, 0, 0
local failed = {}

-- How long timers of a prefix and status are kept; nil for ever.
local function kept_ms(status, prefix)
  local kept = ended_ms
  if status == 'f' or status == 'u' then kept = failed_ms end
  if string.sub(prefix, 1, 7) ~= 'timers.' then return kept end
  return math.min(kept or ended_ms, status == 'c' and CALLS_MS or ended_ms)
end

local function prune(status, prefix)
  local kept = kept_ms(status, prefix)
  if not kept then return end
  local index = finished_key(status, prefix)
  local ids = call('ZRANGEBYSCORE', index, '-inf', '(' .. text(now - kept), 'LIMIT', 0, left)
  if #ids == 0 or moves() then return end
  local gone = {}
  for _, id in ipairs(ids) do
    local member = member_of(prefix, id)
    if bytes > MOST_BYTES then
      cut = 1
      break
    end
    local r, _, raw = read(member)
    if not newer_format(raw) then
      bytes = bytes + #(raw or '')
      gone[#gone + 1] = id
      if r then remove(member, r) else call('HDEL', record_key(member), member) end
    end
  end
  if #gone == 0 then return end
  call('ZREM', index, unpack(gone))
  count(status, prefix, -#gone)
  left, removed = left - #gone, removed + #gone
  if status == 'f' or status == 'u' then
    for _, part in ipairs({status, prefix, #gone, gone[1]}) do failed[#failed + 1] = part end
  end
end

local counted = call('HSCAN', root .. 'counts', cursor, 'COUNT', looks)
for i = 1, #counted[2], 2 do
  local status, prefix = string.match(counted[2][i], '^([cfux]) (.+)$')
  if status and left > 0 and cut == 0 then prune(status, prefix) end
end
conclude()
return {now_text, removed, left > 0 and cut == 0 and counted[1] or cursor, failed, cut}
