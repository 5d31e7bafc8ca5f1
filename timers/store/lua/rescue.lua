#!lua flags=allow-oom
-- Take over runs whose pod let the lease expire. A rescue counts as a claim (attempt + 1, a new token) and as a failure, because
-- the pod died during the run or stopped extending its lease.

local pod, lease_ms = unpack(ARGV, 2, 3)
local rescued, bad, newer, bytes = {}, {}, {}, 0

local function rescue(prefix, id, processor)
  local member = member_of(prefix, id)
  local r, trouble, raw = read(member)
  bytes = bytes + #(raw or '')
  if not r then
    if newer_format(raw) or call('ZSCORE', root .. 'leases', member) then leave_out(prefix, id, trouble, raw, newer, bad) end
    return
  end
  if lease_of(member) then return end
  if call('SISMEMBER', root .. 'paused', prefix) == 1 then return end
  if r.status ~= 'r' then
    call('ZREM', root .. 'leases', member)
    return
  end
  local token = take_tokens(1)
  take_lease(member, pod, text(token), lease_ms)
  r.token, r.attempt, r.failures = token, r.attempt + 1, r.failures + 1
  note(r, 'rescue', pod, now - r.due, processor)
  call('ZADD', root .. 'leases', text(now + lease_ms), member)
  local n = #rescued
  rescued[n + 1], rescued[n + 2], rescued[n + 3] = prefix, id, write(member, r)
end

for i = 4, (moves() or unchecked()) and 3 or #ARGV, 3 do
  if bytes <= MOST_BYTES then rescue(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
end
conclude()
return {now_text, rescued, bad, newer}
