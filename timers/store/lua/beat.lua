#!lua flags=allow-oom
-- A pod's sign of life, and who else is alive. KEYS[1] is the registry's root, `timers:{pods}:`.
--
-- ARGV[2]  pod
-- ARGV[3]  what it says of itself (JSON), or '' to leave
-- ARGV[4]  ms after which a silent pod is forgotten
-- Answer   {now, {pod, ms of its last sign, what it says, …}}

local seen, info = root .. 'seen', root .. 'info'
if ARGV[3] == '' then
  redis.call('ZREM', seen, ARGV[2])
  redis.call('HDEL', info, ARGV[2])
else
  redis.call('ZADD', seen, text(now), ARGV[2])
  redis.call('HSET', info, ARGV[2], ARGV[3])
end
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', '(' .. text(now - ARGV[4]))) do
  redis.call('ZREM', seen, silent)
  redis.call('HDEL', info, silent)
end
local alive = redis.call('ZRANGE', seen, 0, -1, 'WITHSCORES')
local answer = {}
for i = 1, #alive, 2 do
  answer[#answer + 1] = alive[i]
  answer[#answer + 1] = alive[i + 1]
  answer[#answer + 1] = redis.call('HGET', info, alive[i]) or '{}'
end
return {text(now), answer}
