#!lua flags=allow-oom
-- Say how far a shard and the ledger have come to agree, unless the shard was lost meanwhile or another pod said it first.

local epoch, before, reached = ARGV[2], ARGV[3], ARGV[4]
if not carries(epoch) or stage() ~= before then return {now_text, 0} end
if reached == 'whole' then
  reached = 'whole ' .. now_text .. ' ' .. (string.match(about_server(), 'run_id:(%w+)') or '-')
  publish(ARGV[1], tag .. ' ' .. now_text)  -- claims may have waited for it
end
call('HSET', root .. 'hooks', '@ledger', reached)
return {now_text, 1}
