#!lua flags=allow-oom
-- Close a shard because the service is being moved or has moved, or open it again: with a stamp that nobody knows no timer is made,
-- and the mark keeps callers and pods from changing any. Answers how many runs are in progress, as far as it looked.

local LOOKED = 1000
local stamp, mark = ARGV[2], ARGV[3]
local runs = 0
call('SET', root .. 'epoch', stamp)
if mark ~= '' then
  call('HSET', root .. 'hooks', '@moving', mark)
  for _, member in ipairs(call('ZRANGE', root .. 'leases', '0', text(LOOKED - 1))) do
    if lease_of(member) then runs = runs + 1 end
  end
else
  call('HDEL', root .. 'hooks', '@moving')
  earliest = now
end
conclude()
return {now_text, runs}
