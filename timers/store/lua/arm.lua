-- Arm timers: record, due index and trigger key at once, or nothing.
--
-- ARGV[2]  edit lock, ms
-- ARGV[3…] one for each timer, seven lines: prefix, id, if_exists (`error`, `replace`, `keep`), due (`@<epoch ms>` or
--          `+<ms from now>`), wishes, progress, a note for the history when it replaces
-- Answer   {now, code, record, code, record, …}; the record is the one that is now there. Codes: `created`, `replaced`,
--          `kept`, `exists`, `running` and `locked` (the last three changed nothing)

local edit_lock = tonumber(ARGV[2])
local answer = {text(now)}

local function due_of(spec)
  local kind, ms = string.sub(spec, 1, 1), tonumber(string.sub(spec, 2))
  return text(kind == '+' and now + ms or ms)
end

local function create(prefix, id, due, wishes, progress)
  local r = {status = 's', version = '1', token = '0', attempt = '0', failures = '0', occurrence = '1', due = due,
             created = text(now), entries = '0', rest = wishes .. '\n' .. progress}
  schedule(prefix, id, due)
  count('s', prefix, 1)
  return 'created', write(member_of(prefix, id), r)
end

-- A new life of the same identity. The token stays (it may only grow); an occurrence that has already started is not
-- taken up again, or its idempotency key would stand for two different runs.
local function replace(prefix, id, r, due, wishes, progress, said)
  local from = r.status
  if from == 's' then unschedule(prefix, id) else redis.call('ZREM', finished_key(from, prefix), id) end
  if r.attempt ~= '0' then r.occurrence = text(r.occurrence + 1) end
  r.status, r.attempt, r.failures, r.due = 's', '0', '0', due
  set_body(r, wishes, progress)
  note(r, '-', '-', said)
  schedule(prefix, id, due)
  refresh_head(prefix)
  recount(from, 's', prefix)
  return 'replaced', write(member_of(prefix, id), r)
end

local function arm(prefix, id, if_exists, due, wishes, progress, said)
  local member = member_of(prefix, id)
  local r, _, raw = read(member)
  if not r then return create(prefix, id, due, wishes, progress) end
  if if_exists == 'keep' then return 'kept', raw end
  if if_exists == 'error' then return 'exists', raw end
  if r.status == 'r' then return 'running', raw end
  if r.status == 's' and locked(r, edit_lock) then return 'locked', raw end
  return replace(prefix, id, r, due, wishes, progress, said)
end

local LINES = '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$'
for i = 3, #ARGV do
  local prefix, id, if_exists, due, wishes, progress, said = string.match(ARGV[i], LINES)
  local code, raw = arm(prefix, id, if_exists, due_of(due), wishes, progress, said)
  answer[#answer + 1] = code
  answer[#answer + 1] = raw
end
conclude()
return answer
