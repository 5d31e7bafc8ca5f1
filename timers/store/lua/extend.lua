#!lua flags=allow-oom
-- Extend leases. The record decides, not the lease key: whoever has the newest token goes on, even if the lease expired
-- meanwhile, because nobody has taken over yet. Everybody else has lost the run.

local pod, lease_ms = unpack(ARGV, 2, 3)
local lost, seen, bytes = {}, 0, 0
for i = 4, #ARGV, 3 do
  if bytes > MOST_BYTES then break end
  local member, token = member_of(ARGV[i], ARGV[i + 1]), tonumber(ARGV[i + 2])
  local r, _, raw = read(member)
  seen, bytes = seen + 1, bytes + #(raw or '')
  if r and r.status == 'r' and r.token == token then
    if call('PEXPIRE', lease_key(member), lease_ms) == 0 then
      call('SET', lease_key(member), pod .. ' ' .. text(token), 'PX', lease_ms)
    end
    call('ZADD', root .. 'leases', text(now + lease_ms), member)
  else
    lost[#lost + 1] = (i - 4) / 3
  end
end
return {now_text, lost, seen}
