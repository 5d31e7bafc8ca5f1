#!lua flags=allow-oom
-- Arm a finished timer again. If it failed, was cancelled or became unhandled, its occurrence goes on, with its attempts,
-- because the receiver may have seen a part of it. If it completed, its next occurrence begins. Failures count from zero again.

local prefix, id, at, version, which, cause, room, progress = unpack(ARGV, 2)
local r, raw, code = to_change(prefix, id, version, 0)
if not code and r.status == 's' then code = 'scheduled' end
if not code and r.status == 'c' and which ~= 'completed' then code = 'completed' end
if not code and room == 'full' then code = 'full' end
if code then return {now_text, code, raw} end
local from, due = r.status, due_of(at)
local refusal = set_trigger(prefix, id, due)
if refusal then return {now_text, 'rights', refusal} end
call('ZREM', finished_key(from, prefix), id)
if from == 'c' then r.occurrence, r.attempt = r.occurrence + 1, 0 end
r.status, r.failures, r.due = 's', 0, due
if progress and progress ~= '-' then set_body(r, nil, progress) end
note(r, cause)
enqueue(prefix, id, due)
recount(from, 's', prefix)
raw = write(member_of(prefix, id), r)
conclude()
return {now_text, 'changed', raw}
