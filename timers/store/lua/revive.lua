-- Arm a failed, unhandled or cancelled timer again, due now. The occurrence and its attempts go on (the receiver may have
-- seen a part of it); the count of failures starts anew.
--
-- ARGV[2]  prefix      ARGV[3] id
-- ARGV[4]  note for the history
-- Answer   {now, code, record}; codes: `changed`, `missing`, `running`, `scheduled`, `completed`

local prefix, id = ARGV[2], ARGV[3]
local member = member_of(prefix, id)
local r, _, raw = read(member)
local refusals = {r = 'running', s = 'scheduled', c = 'completed'}

if not r then return {text(now), 'missing', raw} end
if refusals[r.status] then return {text(now), refusals[r.status], raw} end
local from = r.status
redis.call('ZREM', finished_key(from, prefix), id)
r.status, r.failures, r.due = 's', '0', text(now)
note(r, '-', '-', ARGV[4])
schedule(prefix, id, r.due)
recount(from, 's', prefix)
raw = write(member, r)
conclude()
return {text(now), 'changed', raw}
