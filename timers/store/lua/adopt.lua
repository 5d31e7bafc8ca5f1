#!lua flags=allow-cross-slot-keys
-- Copy bare keys into durable records. Their timers wait in `adopted` until the keys expire, change or go.
--
-- ARGV[2…] four for each key: prefix, id, the value as it was read, the spec made of it
-- Answer   {now, code, …}: `adopted`, `moved` (SET again), `same`, `gone` (changed or expired since it was read, or without
--          a TTL), `running` (after the run)

local CLOCK_MS = 10     -- a SET that moves less than this is the same
local answer = {text(now)}

local function adopt(prefix, id, value, spec)
  local member = member_of(prefix, id)
  local due = redis.call('PEXPIRETIME', member)
  if due <= now or redis.call('GET', member) ~= value then return 'gone' end
  local r = read_or_clear(prefix, id)
  if r and r.status == 'r' then return 'running' end
  local adopted = r and redis.call('ZSCORE', root .. 'adopted', member)
  if adopted and math.abs(due - r.due) <= CLOCK_MS and string.match(r.rest, '^[^\n]*') == spec then return 'same' end
  if adopted then
    r.due = text(due)
    set_body(r, spec, nil)
    note(r, 'bare-set-again')
  else
    if r then leave(prefix, id, r.status) end
    r = new_life(prefix, r, text(due), spec, '', 'bare-adopted')
  end
  redis.call('ZADD', root .. 'adopted', r.due, member)
  write(member, r)
  return adopted and 'moved' or 'adopted'
end

for i = 2, #ARGV, 4 do answer[#answer + 1] = adopt(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
conclude()
return answer
