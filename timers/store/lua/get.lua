#!lua flags=no-writes
-- Read timers with their leases. Changes nothing.

local answer = {now_text}
for i = 2, #ARGV, 2 do
  local member = member_of(ARGV[i], ARGV[i + 1])
  local raw = call('HGET', record_key(member), member)
  local held, left = nil, nil
  if raw then held, left = lease_of(member) end
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = raw, held or '', left or 0
end
return answer
