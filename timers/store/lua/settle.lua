-- The one door out of `running`: done, retry, repeat, re-arm, fail, hand-back. The token is compared first.
--
-- ARGV[2]  pod
-- ARGV[3]  retention, ms; 0 removes a finished record at once
-- ARGV[4…] eleven for each run: prefix, id, token, status after, due, attempt, failures, occurrence, wishes or '' to keep
--          them, progress, note
-- Answer   {now, code, …}: `settled`; `already` (this token's result is in: an earlier answer was lost); `fenced` (another
--          pod has a newer token); `missing`

local pod, retention_ms = ARGV[2], tonumber(ARGV[3])
local answer = {text(now)}

local function finish(prefix, id, member, r)
  if retention_ms == 0 then
    redis.call('HDEL', record_key(member), member)
    count('r', prefix, -1)
    return
  end
  redis.call('ZADD', finished_key(r.status, prefix), text(now), id)
  recount('r', r.status, prefix)
  write(member, r)
end

local function settle(prefix, id, token, status, due, attempt, failures, occurrence, wishes, progress, said)
  local member = member_of(prefix, id)
  local r = read(member)
  if not r then return 'missing' end
  if r.token ~= token then return 'fenced' end
  if r.status ~= 'r' then return 'already' end
  -- Freeing first, as in claim: a run must be able to complete at maxmemory.
  redis.call('DEL', lease_key(member))
  redis.call('ZREM', root .. 'leases', member)
  set_body(r, wishes ~= '' and wishes or nil, progress)
  r.status = status
  note(r, pod, '-', said)
  r.due, r.attempt, r.failures, r.occurrence = due, attempt, failures, occurrence
  if status ~= 's' then finish(prefix, id, member, r) return 'settled' end
  schedule(prefix, id, due)
  recount('r', 's', prefix)
  write(member, r)
  return 'settled'
end

for i = 4, #ARGV, 11 do
  answer[#answer + 1] = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6],
    ARGV[i + 7], ARGV[i + 8], ARGV[i + 9], ARGV[i + 10])
end
wake()
return answer
