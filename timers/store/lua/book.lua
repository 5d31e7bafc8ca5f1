#!lua flags=allow-oom
-- Book places under a quota, and learn how many were booked before. KEYS[1] is the root `timers:{access}:`. The earlier booking
-- has the earlier claim: a caller then counts the scheduled timers, and takes them and the places booked before off its quota.

local booking, lasts_ms, places, prefixes = unpack(ARGV, 2)
local bookings = root .. 'bookings'
call('ZREMRANGEBYSCORE', bookings, '-inf', now_text)
if booking == '' then
  local newest = tonumber(call('GET', root .. 'booked'))
  local number = text(newest and newest > 0 and newest < 2 ^ 53 and newest + 1 or 1)   -- what is no number begins anew
  call('SET', root .. 'booked', number)
  booking = number .. ' ' .. places .. ' ' .. prefixes
  call('ZADD', bookings, text(now + lasts_ms), booking)
  call('PEXPIRE', bookings, lasts_ms)
end

-- Whether a prefix can match both patterns.
local function meet(one, other)
  local short, long = one, other
  if #short > #long then short, long = long, short end
  local beginning = string.match(short, '^(.*)%*$')
  return one == other or (beginning ~= nil and string.sub(long, 1, #beginning) == beginning)
end

local function overlaps(patterns)
  for one in string.gmatch(patterns, '%S+') do
    for other in string.gmatch(prefixes, '%S+') do
      if meet(one, other) then return true end
    end
  end
  return false
end

local own, ahead = tonumber(string.match(booking, '^%d+')), 0
for _, other in ipairs(call('ZRANGE', bookings, 0, -1)) do
  local number, booked, patterns = string.match(other, '^(%d+) (%d+) (.*)$')
  if number and tonumber(number) < own and overlaps(patterns) then ahead = ahead + booked end
end
return {now_text, booking, ahead}
