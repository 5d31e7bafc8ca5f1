#!lua flags=no-writes
-- Read timers with their leases. Changes nothing.

local answer = {text(now)}
for i = 2, #ARGV, 2 do
  local member = member_of(ARGV[i], ARGV[i + 1])
  local raw = call('HGET', record_key(member), member)
  local held, left = nil, nil
  if raw then held, left = lease_of(member) end
  answer[#answer + 1] = raw
  answer[#answer + 1] = held or ''
  answer[#answer + 1] = left or 0
end
return answer
