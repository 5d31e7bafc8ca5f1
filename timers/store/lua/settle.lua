#!lua flags=allow-oom
-- The one door out of `running`: done, retry, repeat, re-arm, fail, hand back. Compares the token first.
--
-- ARGV[2]  pod
-- ARGV[3]  letters of the finished statuses whose records are removed at once
-- ARGV[4…] one for each run, thirteen lines: prefix, id, token, status after, due, attempt, failures, occurrence, spec (or
--          nothing to keep it), progress, how long claiming, waiting and running took (or `-`), since when it fails (ms, or
--          nothing), cause with its text
-- Answer   {now, code, …}: `settled`; `already` (this token's result was written before: an earlier answer was lost); `fenced`
--          (another pod has a newer token, or has written the record in a newer format); `missing`

local pod, removes = ARGV[2], ARGV[3]
local answer, ends, leases, members = {text(now)}, {}, {}, {}
local LINES = '^' .. string.rep('([^\n]*)\n', 12) .. '(.*)$'

local function verdict(e)
  e.member = member_of(e.prefix, e.id)
  local raw, _
  e.record, _, raw = read(e.member)
  if not e.record then return newer_format(raw) and 'fenced' or 'missing' end
  if e.record.token ~= e.token then return 'fenced' end
  if e.record.status ~= 'r' then return 'already' end
  return 'settled'
end

local function finish(e, r)
  if string.find(removes, r.status, 1, true) then
    remove(e.member, r)
    count('r', e.prefix, -1)
    tell(e.member, r, e.said)
    return
  end
  call('ZADD', finished_key(r.status, e.prefix), text(now), e.id)
  recount('r', r.status, e.prefix)
  write(e.member, r)
end

local function apply(e)
  local r = e.record
  set_body(r, e.spec ~= '' and e.spec or nil, e.progress)
  r.status = e.status
  -- If the claim started nothing, its attempt is taken back. The next occurrence counts anew, but the entry belongs to this one.
  if e.occurrence == r.occurrence then r.attempt = e.attempt end
  note(r, e.said, pod, e.took)
  r.due, r.attempt, r.failures, r.occurrence = e.due, e.attempt, e.failures, e.occurrence
  if r.status ~= 's' then return finish(e, r) end
  schedule(e.prefix, e.id, r.due)
  if r.failures ~= '0' then begin_retrying(e.prefix, e.id, e.since ~= '' and e.since or text(now)) end
  recount('r', 's', e.prefix)
  write(e.member, r)
end

for i = 4, #ARGV do
  local e = {}
  e.prefix, e.id, e.token, e.status, e.due, e.attempt, e.failures, e.occurrence, e.spec, e.progress, e.took,
    e.since, e.said = string.match(ARGV[i], LINES)
  local code = verdict(e)
  if code == 'settled' then
    ends[#ends + 1] = e
    leases[#leases + 1] = lease_key(e.member)
    members[#members + 1] = e.member
  end
  answer[i - 2] = code
end
if #ends > 0 then
  call('DEL', unpack(leases))
  call('ZREM', root .. 'leases', unpack(members))
end
for _, e in ipairs(ends) do apply(e) end
conclude()
return answer
