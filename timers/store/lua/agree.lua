#!lua flags=allow-oom
-- Say how far a shard and the ledger have come to agree, unless the shard was lost meanwhile or another pod said it first.

local expected, before, reached = ARGV[2], ARGV[3], ARGV[4]
if life() ~= expected or stage() ~= before then return {now_text, 0} end
if reached == 'whole -' then reached = 'whole ' .. now_text end
set_stage(reached)
if string.sub(before, 1, 5) == 'check' then publish(ARGV[1], tag .. ' ' .. now_text) end  -- claims have waited for it
return {now_text, 1}
