#!lua flags=allow-oom
-- Give back permits of a limited prefix whose runs have ended, or that were reserved and not used. KEYS[1] as in reserve.

local off_us = ARGV[2]
if #ARGV > 2 then call('ZREM', root .. 'permits', unpack(ARGV, 3)) end
local tat = off_us ~= '0' and tonumber(call('GET', root .. 'rate'))
if tat and tat < 2 ^ 53 then
  local ahead = tat - off_us - now_us
  if ahead > 0 then call('SET', root .. 'rate', text(tat - off_us), 'PX', math.ceil(ahead / 1000) + 1)
  else call('DEL', root .. 'rate') end
end
return {now_text}
