#!lua flags=allow-oom
-- Add starts to the rings of the last hour and the last day. KEYS[1] is the rings' root, `timers:{fired}:`. When a slot comes
-- round again its number has changed, and it begins anew; so a ring never grows.

local function add(ring, slots, width_ms)
  local number = math.floor(now / width_ms)
  local field = text(number % slots)
  local stamp, held = string.match(call('HGET', root .. ring, field) or '', '^(%d+)(.*)$')
  local counts = {}
  if stamp == text(number) then
    for bucket, n in string.gmatch(held, ' (%d+):(%d+)') do counts[bucket] = tonumber(n) end
  end
  for i = 2, #ARGV, 2 do counts[ARGV[i]] = (counts[ARGV[i]] or 0) + ARGV[i + 1] end
  local parts = {text(number)}
  for bucket, n in pairs(counts) do parts[#parts + 1] = bucket .. ':' .. text(n) end
  call('HSET', root .. ring, field, table.concat(parts, ' '))
end

add('hour', 60, 60000)
add('day', 48, 1800000)
return {now_text}
