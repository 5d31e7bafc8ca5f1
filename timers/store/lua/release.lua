#!lua flags=allow-oom
-- Give back permits of a limited prefix whose runs have ended, or that were reserved and not used. KEYS[1] as in reserve.
--
-- ARGV[2]  µs to take off the rate, for starts that were reserved and not made (0: none)
-- ARGV[3…] permits
-- Answer   {now}

if #ARGV > 2 then call('ZREM', root .. 'permits', unpack(ARGV, 3)) end
local tat = ARGV[2] ~= '0' and tonumber(call('GET', root .. 'rate'))
if tat and tat < 2 ^ 53 then
  local ahead = tat - ARGV[2] - now_us
  if ahead > 0 then call('SET', root .. 'rate', text(tat - ARGV[2]), 'PX', math.ceil(ahead / 1000) + 1)
  else call('DEL', root .. 'rate') end
end
return {text(now)}
