#!lua flags=allow-oom,allow-cross-slot-keys
-- Look after adopted timers whose bare keys may be gone.
--
-- ARGV[2]  `look`: answer those whose key is gone; `deleted`: cancel those given; `expired`: make those given due
-- ARGV[3…] for `look` two: the rank to begin at and the most to look at; else three for each timer: prefix, id, due as
--          it was answered: of a key that was set again and is gone again since, another look has to tell
-- Answer   {now, {member, due, …}, looked}: for `look` the timers whose key is gone, due or not (one whose key has lost its
--          TTL is cancelled here and left out); else the timers that were changed

local gone = {}

local function cancel(prefix, id, r, said)
  r.status = 'x'
  note(r, said)
  redis.call('ZADD', finished_key('x', prefix), text(now), id)
  recount('s', 'x', prefix)
  write(member_of(prefix, id), r)
end

local function finish(member, said)
  local prefix, id = string.match(member, '^([^:]*):(.*)$')
  local r, trouble, raw = read(member)
  if not r then return quarantine(prefix, id, trouble, raw) end
  redis.call('ZREM', root .. 'adopted', member)
  if r.status ~= 's' then return end
  if said then return cancel(prefix, id, r, said) end
  answer_bare(member, 0)
  note(r, 'bare-expired-unheard')
  write(member, r)
  enqueue(prefix, id, r.due)
  earliest = now
end

local function look(member, due)
  local left = redis.call('PTTL', member)
  if left == -1 then return finish(member, 'bare-lost-ttl') end
  if left ~= -2 then return end
  gone[#gone + 1] = member
  gone[#gone + 1] = due
end

local looked = 0
if ARGV[2] == 'look' then
  local some = redis.call('ZRANGE', root .. 'adopted', ARGV[3], ARGV[3] + ARGV[4] - 1, 'WITHSCORES')
  for i = 1, #some, 2 do look(some[i], some[i + 1]) end
  looked = #some / 2
else
  for i = 3, #ARGV, 3 do
    local member = member_of(ARGV[i], ARGV[i + 1])
    local due = redis.call('ZSCORE', root .. 'adopted', member)
    if due and tonumber(due) == tonumber(ARGV[i + 2]) and redis.call('EXISTS', member) == 0 then
      finish(member, ARGV[2] == 'deleted' and 'bare-deleted' or nil)
      gone[#gone + 1] = member
      gone[#gone + 1] = '0'
    end
  end
end
conclude()
return {text(now), gone, looked}
