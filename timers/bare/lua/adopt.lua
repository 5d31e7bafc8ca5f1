#!lua
-- Copy bare keys into records. Such a timer waits: no claim takes it until `resolve` lets it go. During a run, the key is remembered.

local epoch, format = unpack(ARGV, 2, 3)
if not carries(epoch) then return {now_text, 'foreign'} end

-- `said` is the key's deadline, or `<deadline>/<number>/<since>` if the pod had heard that the key expired before it was set again.
local function adopt(prefix, id, known, said, spec)
  local member = member_of(prefix, id)
  local deadline, number, since = string.match(said, '^(%d+)/?(%d*)/?(.*)$')
  if known_deadline(member) ~= tonumber(known) or tonumber(deadline) <= now then return 'stale' end
  local r, _, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer' end
  if since ~= '' or known ~= '' and tonumber(known) <= now then found_expired(member, since, number, r) end
  if r and r.status == 'r' then
    call('ZREM', root .. 'bare', member)
    remember(member, r, deadline, spec)
    return 'running'
  end
  return adopt_key(prefix, id, member, r, deadline, spec, format)
end

local answer = {now_text}
for i = 4, #ARGV do
  answer[i - 2] = adopt(string.match(ARGV[i], '^([^\n]*)\n([^\n]*)\n(%d*)\n(%S+)\n(.*)$'))
end
conclude()
return answer
