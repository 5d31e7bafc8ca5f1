#!lua flags=allow-oom
-- Find runs whose lease has expired. A look at an expired lease key makes Redis delete it and publish its event.

local most, rank = tonumber(ARGV[2]), tonumber(ARGV[3])
local orphans, paused = {}, {}
for _, prefix in ipairs(call('SMEMBERS', root .. 'paused')) do paused[prefix] = true end

local expired = call('ZRANGEBYSCORE', root .. 'leases', '-inf', '(' .. now_text, 'LIMIT', rank, most)
for _, member in ipairs(expired) do
  if not is_member(member) then
    call('ZREM', root .. 'leases', member)
  elseif not paused[string.match(member, '^[^:]*')] and not lease_of(member) then
    orphans[#orphans + 1] = member
  end
end
return {now_text, orphans, #expired == most and rank + most or 0}
