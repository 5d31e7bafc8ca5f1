#!lua flags=allow-oom
-- Let a call of an API key pass, or say how long it must wait. KEYS[1] is the root `timers:{access}:`.
--
-- ARGV[2]  id of the key
-- ARGV[3]  microseconds between calls
-- ARGV[4]  calls that may come at once after a pause
-- Answer   {now, wait ms}: 0 if the call may pass; then it is counted

-- Generic cell rate algorithm (ITU-T I.371): `tat` is the theoretical arrival time of the next call, in microseconds.
local key = root .. 'rate:' .. ARGV[2]
local interval, burst = tonumber(ARGV[3]), tonumber(ARGV[4])
local tat = arrival(key, burst * interval) + interval
local ahead = tat - burst * interval - now_us
if ahead > 0 then return {text(now), math.ceil(ahead / 1000)} end
call('SET', key, text(tat), 'PX', math.ceil((tat - now_us) / 1000) + 1)
return {text(now), 0}
