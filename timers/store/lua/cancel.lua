#!lua flags=allow-oom
-- Cancel a scheduled timer. `purge` also removes its record, even if the timer is finished.
--
-- ARGV[2]  edit lock, ms
-- ARGV[3]  prefix      ARGV[4] id
-- ARGV[5]  expected version, or '' for any
-- ARGV[6]  `purge`; `forget` to remove the record of a cancelled timer, for a retention of 0; or ''
-- ARGV[7]  cause for the history; left out or '' for `cancelled`
-- Answer   {now, code, record}; codes: `cancelled`, `purged`, `missing`, `newer`, `running`, `locked`, `version`, `finished`,
--          `rights` (with what the user may not do in the place of the record). The record is the cancelled one, even if it
--          has just been removed. Cancelling a cancelled timer answers `cancelled` again, because the first answer may have
--          been lost.

local prefix, id, purge, forget = ARGV[3], ARGV[4], ARGV[6] == 'purge', ARGV[6] == 'forget'
local member = member_of(prefix, id)
local r, _, raw = read(member)

local function refused_with()
  if not r then return newer_format(raw) and 'newer' or 'missing' end
  if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= r.version then return 'version' end
  if r.status == 'r' then return 'running' end
  if r.status == 's' and locked(r, tonumber(ARGV[2])) then return 'locked' end
  if r.status ~= 's' and r.status ~= 'x' and not purge then return 'finished' end
end

local function forget_it()
  remove(member, r)
  call('ZREM', finished_key(r.status, prefix), id)
  count(r.status, prefix, -1)
end

local function cancel()
  leave(prefix, id, r)
  r.status = 'x'
  note(r, ARGV[7] ~= '' and ARGV[7] or 'cancelled')
  call('ZADD', finished_key('x', prefix), text(now), id)
  recount('s', 'x', prefix)
  return write(member, r)
end

local code = refused_with()
if code then return {text(now), code, raw} end
local refusal = r.status == 's' and drop_trigger(prefix, id)
if refusal then return {text(now), 'rights', refusal} end
if r.status == 's' then raw = cancel() end
if purge or forget then forget_it() end
if purge then tell(member, r, 'purged', raw) end
conclude()
return {text(now), purge and 'purged' or 'cancelled', raw}
