#!lua flags=allow-oom
-- Change a scheduled timer: its due time, its spec, or both.
--
-- ARGV[2]  edit lock, ms; 0 for `fire` (make it due now), which the lock allows
-- ARGV[3]  prefix      ARGV[4] id
-- ARGV[5]  expected version, or '' for any
-- ARGV[6]  due (`@<epoch ms>`, `+<ms from now>`), or '' to keep it
-- ARGV[7]  spec, or '' to keep it
-- ARGV[8]  progress, or '-' to keep it
-- ARGV[9]  cause for the history
-- Answer   {now, code, record}; codes: `changed`, `missing`, `newer`, `running`, `locked`, `version`, `finished`, `rights`
--          (with what the user may not do in the place of the record)

local prefix, id, due = ARGV[3], ARGV[4], ARGV[6]
local member = member_of(prefix, id)
local r, _, raw = read(member)

local function refused_with()
  if not r then return newer_format(raw) and 'newer' or 'missing' end
  if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= r.version then return 'version' end
  if r.status == 'r' then return 'running' end
  if r.status ~= 's' then return 'finished' end
  if locked(r, tonumber(ARGV[2])) then return 'locked' end
end

local code = refused_with()
if code then return {text(now), code, raw} end
if due ~= '' then r.due = due_of(due) end
if due ~= '' or r.waits then
  local refusal = set_trigger(prefix, id, r.due)
  if refusal then return {text(now), 'rights', refusal} end
  call('ZREM', queue_key(prefix), id)
  enqueue(prefix, id, r.due)
  refresh_head(prefix)
end
set_body(r, ARGV[7] ~= '' and ARGV[7] or nil, ARGV[8] ~= '-' and ARGV[8] or nil)
note(r, ARGV[9])
raw = write(member, r)
conclude()
return {text(now), 'changed', raw}
