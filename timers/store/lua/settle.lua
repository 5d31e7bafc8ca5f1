#!lua flags=allow-oom
-- The one door out of `running`: done, retry, repeat, re-arm, fail, hand back. Compares the token first. The pod writes the whole
-- record anew, because nobody else changes the record of a run whose token it has.

local removes = ARGV[2]
local answer, leases, members, finished = {now_text}, {}, {}, {}

local function verdict(member, token)
  local held, _, raw = read(member)
  if not held then return newer_format(raw) and 'fenced' or 'missing' end
  if held.token ~= token then return 'fenced' end
  if held.status ~= 'r' then return 'already' end
  return 'settled'
end
-- Once the records are copied, the run goes on in the other place, as a lost one.
if moves() and string.sub(moving, 1, 8) ~= 'leaving ' then verdict = function() return 'fenced' end end

local function finish(prefix, id, status)
  local index = finished_key(status, prefix)
  local ended = finished[index] or {prefix = prefix, status = status}
  finished[index] = ended
  local n = #ended
  ended[n + 1], ended[n + 2] = now_text, id
end

local function settle(prefix, id, since, member, r, said, raw)
  if r.status == 's' then
    schedule(prefix, id, r.due)
    if r.failures ~= 0 then begin_retrying(prefix, id, since ~= '-' and since or now_text) end
    recount('r', 's', prefix)
  elseif string.find(removes, r.status, 1, true) then
    remove(member, r)
    count('r', prefix, -1)
    return announce(member, r, said, raw)
  else
    finish(prefix, id, r.status)
  end
  put(member, r, said, raw)
end

for i = 3, #ARGV do
  local prefix, id, since, entry, said, from = string.match(ARGV[i], '^(%S+) (%S+) (%S+) (%S+ %S+ %S+ %S+ %S+ ([^\n]*))\n()')
  local member, raw = member_of(prefix, id), string.sub(ARGV[i], from) .. '\n' .. now_text .. ' ' .. entry
  local r = parse(raw)
  local code = verdict(member, r.token)
  if code == 'settled' then
    settle(prefix, id, since, member, r, said, raw)
    local n = #members + 1
    leases[n], members[n] = lease_key(member), member
  end
  answer[i - 1] = code
end
if #members > 0 then
  call('DEL', unpack(leases))
  call('ZREM', root .. 'leases', unpack(members))
end
for index, ended in pairs(finished) do
  call('ZADD', index, unpack(ended))
  count('r', ended.prefix, -#ended / 2)
  count(ended.status, ended.prefix, #ended / 2)
end
conclude()
return answer
