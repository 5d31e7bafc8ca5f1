#!lua flags=allow-oom
-- The one door out of `running`: done, retry, repeat, re-arm, fail, hand back. Compares the token first. The pod writes the whole
-- record anew, because nobody else changes the record of a run whose token it has.
--
-- ARGV[2]  letters of the finished statuses whose records are removed at once
-- ARGV[3…] one for each run: a line of prefix, id, since when it fails (ms, or `-`) and the new history entry without its time;
--          then the record without that entry
-- Answer   {now, code, …}: `settled`; `already` (this token's result was written before: an earlier answer was lost); `fenced`
--          (another pod has a newer token, or has written the record in a newer format); `missing`

local removes = ARGV[2]
local answer, ends, leases, members, finished = {now_text}, {}, {}, {}, {}

local function verdict(e)
  local held, _, raw = read(e.member)
  if not held then return newer_format(raw) and 'fenced' or 'missing' end
  if held.token ~= e.record.token then return 'fenced' end
  if held.status ~= 'r' then return 'already' end
  return 'settled'
end

local function finish(e, r)
  if string.find(removes, r.status, 1, true) then
    remove(e.member, r)
    count('r', e.prefix, -1)
    tell(e.member, r, e.said, e.raw)
    return
  end
  local index = finished_key(r.status, e.prefix)
  local ended = finished[index] or {}
  finished[index] = ended
  ended[#ended + 1] = now_text
  ended[#ended + 1] = e.id
  recount('r', r.status, e.prefix)
  put(e.member, r, e.said, e.raw)
end

local function apply(e)
  local r = e.record
  if r.status ~= 's' then return finish(e, r) end
  schedule(e.prefix, e.id, r.due)
  if r.failures ~= 0 then begin_retrying(e.prefix, e.id, e.since ~= '-' and e.since or now_text) end
  recount('r', 's', e.prefix)
  put(e.member, r, e.said, e.raw)
end

for i = 3, #ARGV do
  local prefix, id, since, entry, from = string.match(ARGV[i], '^(%S+) (%S+) (%S+) ([^\n]*)\n()')
  local raw = string.sub(ARGV[i], from) .. '\n' .. now_text .. ' ' .. entry
  local e = {prefix = prefix, id = id, since = since, member = member_of(prefix, id), raw = raw, record = parse(raw),
             said = string.match(entry, '^%S+ %S+ %S+ %S+ %S+ (.*)$')}
  local code = verdict(e)
  if code == 'settled' then
    ends[#ends + 1] = e
    leases[#leases + 1] = lease_key(e.member)
    members[#members + 1] = e.member
  end
  answer[i - 1] = code
end
if #ends > 0 then
  call('DEL', unpack(leases))
  call('ZREM', root .. 'leases', unpack(members))
end
for _, e in ipairs(ends) do apply(e) end
for index, ended in pairs(finished) do call('ZADD', index, unpack(ended)) end
conclude()
return answer
