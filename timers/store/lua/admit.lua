#!lua flags=allow-oom
-- Let a call of an API key pass, or say how long it must wait. KEYS[1] is the root `timers:{access}:`.

-- Generic cell rate algorithm (ITU-T I.371): `tat` is the theoretical arrival time of the next call, in microseconds.
local id, interval, burst = unpack(ARGV, 2)
local key = root .. 'rate:' .. id
local tat = arrival(key, burst * interval) + interval
local ahead = tat - burst * interval - now_us
if ahead > 0 then return {now_text, math.ceil(ahead / 1000)} end
call('SET', key, text(tat), 'PX', math.ceil((tat - now_us) / 1000) + 1)
return {now_text, 0}
