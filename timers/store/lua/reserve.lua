#!lua flags=allow-oom
-- Reserve starts of a limited prefix, before its timers are claimed, or a call of an API key. KEYS[1] is the prefix's own root,
-- `timers:{limits:<prefix>}:`, or `timers:{access}:` with the name of the key's rate there as the last argument.

local pod, lease_ms, concurrency = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local interval, burst, n = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local permits, rate = root .. 'permits', root .. (ARGV[8] or 'rate')
local wait = 0

local function keep(tat) call('SET', rate, text(tat), 'PX', math.ceil((tat - now_us) / 1000) + 1) end

-- The theoretical arrival time kept for the rate (µs), at least now. One further ahead than this rate reaches is of a slower rate
-- that was changed, and is brought forward; one more than an hour further is foreign.
local function arrival()
  local tat, furthest = tonumber(call('GET', rate)), now_us + burst * interval
  if not tat or not (tat > now_us and tat < furthest + 3600000000) then return now_us end
  if tat > furthest then keep(furthest) end
  return math.min(tat, furthest)
end

if concurrency > 0 then
  call('ZREMRANGEBYSCORE', permits, '-inf', now_text)
  n = math.max(math.min(n, concurrency - call('ZCARD', permits)), 0)
end

-- Generic cell rate algorithm (ITU-T I.371): `tat` is the theoretical arrival time of the next start, in µs.
if interval > 0 then
  local tat = arrival()
  n = math.max(math.min(n, math.floor((now_us + burst * interval - tat) / interval)), 0)
  if n > 0 then
    tat = tat + n * interval
    keep(tat)
  end
  wait = math.max(math.ceil((tat + interval - burst * interval - now_us) / 1000), 0)
end

local names, entries = {}, {}
for i = 1, concurrency > 0 and n or 0 do
  names[i] = pod .. ' ' .. text(now_us) .. '-' .. i
  entries[2 * i - 1] = text(now + lease_ms)
  entries[2 * i] = names[i]
end
if #names > 0 then
  call('ZADD', permits, unpack(entries))
  if call('PTTL', permits) < lease_ms then call('PEXPIRE', permits, lease_ms) end
end
return {now_text, n, wait, names}
