#!lua flags=allow-oom
-- Change a scheduled timer: its due time, its spec, or both.

local edit_lock, prefix, id, version, due, spec, progress, cause = unpack(ARGV, 2)
local r, raw, code = to_change(prefix, id, version, edit_lock)
if not code and r.status ~= 's' then code = 'finished' end
if code then return {now_text, code, raw} end
if due ~= '' then r.due = due_of(due) end
if due ~= '' or r.waits then
  local refusal = set_trigger(prefix, id, r.due)
  if refusal then return {now_text, 'rights', refusal} end
  call('ZREM', queue_key(prefix), id)
  enqueue(prefix, id, r.due)
  refresh_head(prefix)
end
set_body(r, spec ~= '' and spec or nil, progress ~= '-' and progress or nil)
note(r, cause)
raw = write(member_of(prefix, id), r)
conclude()
return {now_text, 'changed', raw}
