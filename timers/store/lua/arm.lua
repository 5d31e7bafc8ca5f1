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

local function arm(prefix, id, if_exists, due, wishes, progress, said)
  local member = member_of(prefix, id)
  local r, raw = read_or_clear(prefix, id)
  if r and if_exists == 'keep' then return 'kept', raw end
  if r and if_exists == 'error' then return 'exists', raw end
  if r and r.status == 'r' then return 'running', raw end
  if r and r.status == 's' and locked(r, edit_lock) then return 'locked', raw end
  if r then leave(prefix, id, r.status) end
  schedule(prefix, id, due)
  return r and 'replaced' or 'created', write(member, new_life(prefix, r, due, wishes, progress, said))
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
