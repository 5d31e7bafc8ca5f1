#!lua flags=allow-oom
-- Arm a finished timer again. If it failed, was cancelled or became unhandled, its occurrence goes on, with its attempts,
-- because the receiver may have seen a part of it. If it completed, its next occurrence begins. Failures count from zero again.
--
-- ARGV[2]  prefix      ARGV[3] id
-- ARGV[4]  due (`@<epoch ms>`, `+<ms from now>`)
-- ARGV[5]  expected version, or '' for any
-- ARGV[6]  `completed` to arm a completed timer too, or ''
-- ARGV[7]  cause for the history
-- ARGV[8]  `full` if a quota leaves no room, or ''
-- ARGV[9]  progress, or '-' or left out to keep it
-- Answer   {now, code, record}; codes: `changed`, `missing`, `newer`, `version`, `running`, `scheduled`, `completed`, `full`,
--          `rights` (with what the user may not do in the place of the record)

local prefix, id = ARGV[2], ARGV[3]
local member = member_of(prefix, id)
local r, _, raw = read(member)

local function refused_with()
  if not r then return newer_format(raw) and 'newer' or 'missing' end
  if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= r.version then return 'version' end
  if r.status == 'r' then return 'running' end
  if r.status == 's' then return 'scheduled' end
  if r.status == 'c' and ARGV[6] ~= 'completed' then return 'completed' end
  if ARGV[8] == 'full' then return 'full' end
end

local code = refused_with()
if code then return {text(now), code, raw} end
local from, due = r.status, due_of(ARGV[4])
local refusal = set_trigger(prefix, id, due)
if refusal then return {text(now), 'rights', refusal} end
call('ZREM', finished_key(from, prefix), id)
if from == 'c' then r.occurrence, r.attempt = r.occurrence + 1, 0 end
r.status, r.failures, r.due = 's', 0, due
if ARGV[9] and ARGV[9] ~= '-' then set_body(r, nil, ARGV[9]) end
note(r, ARGV[7])
enqueue(prefix, id, due)
recount(from, 's', prefix)
raw = write(member, r)
conclude()
return {text(now), 'changed', raw}
