#!lua
-- Arm timers: for each, write record, due index and trigger key at once, or nothing.
--
-- ARGV[2]  the db's epoch
-- ARGV[3]  edit lock, ms
-- ARGV[4]  room that a quota leaves: how many may be armed that are not scheduled already; '' for no limit
-- ARGV[5…] one for each timer, seven lines: prefix, id, if_exists (`error`, `replace`, `keep`), due (`@<epoch ms>` or
--          `+<ms from now>`), spec, progress, cause for the history if it replaces
-- Answer   {now, code, record, code, record, …}: the record as it is now. `created` answers only `<due> <created>`, because
--          the caller knows the rest. Codes: `created`, `replaced`, `kept`, `exists`, `running`, `locked`, `newer` and `full`
--          (the last six change nothing; `full` may have no record), `rights` (with what the user may not do as the record: nothing was
--          changed). {now, `foreign`} if the shard does not carry the epoch; then
--          nothing was changed

if not carries(ARGV[2]) then return {text(now), 'foreign'} end

local edit_lock = tonumber(ARGV[3])
local answer = {text(now)}

local room = tonumber(ARGV[4])

local function arm(prefix, id, if_exists, due, spec, progress, said)
  local member = member_of(prefix, id)
  local r, raw, newer = read_or_clear(prefix, id)
  if newer then return 'newer', raw end
  if r and if_exists == 'keep' then return 'kept', raw end
  if r and if_exists == 'error' then return 'exists', raw end
  if r and r.status == 'r' then return 'running', raw end
  if r and r.status == 's' and locked(r, edit_lock) then return 'locked', raw end
  if room and not (r and r.status == 's') then
    if room < 1 then return 'full', raw or '' end
  end
  local refusal = set_trigger(prefix, id, due)
  if refusal then return 'rights', refusal end
  if room and not (r and r.status == 's') then room = room - 1 end
  if r then leave(prefix, id, r) end
  enqueue(prefix, id, due)
  local life = new_life(prefix, r, due, spec, progress, said)
  raw = write(member, life)
  if r then return 'replaced', raw end
  return 'created', due .. ' ' .. life.created
end

local LINES = '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$'
for i = 5, #ARGV do
  local prefix, id, if_exists, due, spec, progress, said = string.match(ARGV[i], LINES)
  local code, raw = arm(prefix, id, if_exists, due_of(due), spec, progress, said)
  answer[#answer + 1] = code
  answer[#answer + 1] = raw
end
conclude()
return answer
