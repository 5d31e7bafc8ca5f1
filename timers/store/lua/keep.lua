#!lua flags=allow-oom
-- Keep permits of a limited prefix while their runs go on. A permit that expired meanwhile counts again, because its run goes
-- on too. KEYS[1] as in reserve.
--
-- ARGV[2]  ms to keep them
-- ARGV[3…] permits
-- Answer   {now}

local permits, entries = root .. 'permits', {}
for i = 3, #ARGV do
  entries[#entries + 1] = text(now + ARGV[2])
  entries[#entries + 1] = ARGV[i]
end
call('ZADD', permits, unpack(entries))
if call('PTTL', permits) < tonumber(ARGV[2]) then call('PEXPIRE', permits, ARGV[2]) end
return {text(now)}
