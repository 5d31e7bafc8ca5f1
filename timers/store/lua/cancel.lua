#!lua flags=allow-oom
-- Cancel a scheduled timer. `purge` also removes its record, even if the timer is finished.

local edit_lock, prefix, id, version, removal, cause = unpack(ARGV, 2)
local purge, forget = removal == 'purge', removal == 'forget'
local member = member_of(prefix, id)
local r, raw, code = to_change(prefix, id, version, edit_lock)

if not code and r.status ~= 's' and r.status ~= 'x' and not purge then code = 'finished' end
if code then return {now_text, code, raw} end
local refusal = r.status == 's' and drop_trigger(prefix, id)
if refusal then return {now_text, 'rights', refusal} end
if r.status == 's' then
  leave(prefix, id, r)
  raw = end_as('x', prefix, id, r, cause ~= '' and cause or 'cancelled')
end
if purge or forget then
  remove(member, r)
  call('ZREM', finished_key(r.status, prefix), id)
  count(r.status, prefix, -1)
end
if purge then announce(member, r, 'purged', raw) end
conclude()
return {now_text, purge and 'purged' or 'cancelled', raw}
