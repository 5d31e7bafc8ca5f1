#!lua flags=allow-oom
-- Keep permits of a limited prefix while their runs go on. A permit that expired meanwhile counts again, because its run goes
-- on too. KEYS[1] as in reserve.

local keep_ms, permits, entries = ARGV[2], root .. 'permits', {}
for i = 3, #ARGV do
  entries[#entries + 1], entries[#entries + 2] = text(now + keep_ms), ARGV[i]
end
call('ZADD', permits, unpack(entries))
if call('PTTL', permits) < tonumber(keep_ms) then call('PEXPIRE', permits, keep_ms) end
return {now_text}
