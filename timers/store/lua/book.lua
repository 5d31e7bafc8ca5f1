#!lua flags=allow-oom
-- Book places under a quota, and learn how many were booked before. KEYS[1] is the root `timers:{access}:`. The earlier booking
-- has the earlier claim: a caller then counts the scheduled timers, and takes them and the places booked before off its quota.
--
-- ARGV[2]  booking to look at again, or '' for a new one
-- ARGV[3]  ms after which a new booking ends by itself
-- ARGV[4]  places
-- ARGV[5]  the quota's prefixes (or beginnings of prefixes and `*`), separated by spaces
-- Answer   {now, booking, ahead}: how many places were booked before it under prefixes that may be the same

local bookings = root .. 'bookings'
call('ZREMRANGEBYSCORE', bookings, '-inf', text(now))
local booking = ARGV[2]
if booking == '' then
  booking = call('INCRBY', root .. 'booked', 1) .. ' ' .. ARGV[4] .. ' ' .. ARGV[5]
  call('ZADD', bookings, text(now + ARGV[3]), booking)
  call('PEXPIRE', bookings, ARGV[3])
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
    for other in string.gmatch(ARGV[5], '%S+') do
      if meet(one, other) then return true end
    end
  end
  return false
end

local own, ahead = tonumber(string.match(booking, '^%d+')), 0
for _, other in ipairs(call('ZRANGE', bookings, 0, -1)) do
  local place, places, patterns = string.match(other, '^(%d+) (%d+) (.*)$')
  if tonumber(place) < own and overlaps(patterns) then ahead = ahead + places end
end
return {text(now), booking, ahead}
