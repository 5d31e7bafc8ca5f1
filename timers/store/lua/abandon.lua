-- Timers of a queue that no live pod serves: out of the due index, to be seen and armed again by hand.
--
-- ARGV[2]  prefix
-- ARGV[3]  due before, epoch ms
-- ARGV[4]  most to take
-- ARGV[5]  pod that found it
-- Answer   {now, {id, …}}

local prefix, pod = ARGV[2], ARGV[5]
local ids = redis.call('ZRANGEBYSCORE', queue_key(prefix), '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
for _, id in ipairs(ids) do
  local member = member_of(prefix, id)
  local r, trouble, raw = read(member)
  if not r then quarantine(prefix, id, trouble, raw) end
  unschedule(prefix, id)
  if r and r.status == 's' then
    r.status = 'u'
    note(r, pod, '-', 'no live pod serves the prefix')
    redis.call('ZADD', finished_key('u', prefix), text(now), id)
    recount('s', 'u', prefix)
    write(member, r)
  end
end
refresh_head(prefix)
conclude()
return {text(now), ids}
