#!lua
-- Arm timers: for each, write record, due index and trigger key at once, or nothing.

local epoch, form, places = ARGV[2], ARGV[3], ARGV[5]
-- A timer alone needs few rights: what is not asked for here is refused before anything has changed. Of several, a later one may go
-- the long way.
if ARGV[7] then demand() else demand('GET', 'HDEL', 'HINCRBY', 'ZADD') end
if not carries(epoch) then return {now_text, 'foreign'} end
local answer, line = {now_text}, 6

-- The short way: names that are free, while no hooks ask, nor a ledger that does not have the timer. It does what the long way does
-- without functions of its own, because making them costs more than a timer. It takes one queue after another, and ends before the
-- first line that is not as simple.
local asked, heard = call('HKEYS', root .. 'hooks'), true
local followed = asked[1] == '@ledger'
local is_simple = form == '2' and places == '' and newest_token() < (now + 1) * 1000 and not asked[followed and 2 or 1]
while is_simple and ARGV[line] do
  local queue
  while ARGV[line] do
    local prefix, id, sign, at, kept, said, body =
      string.match(ARGV[line], '^(%S+) (%S+) %S+ ([@+])(%d+)/?(%d*) ([^\n]*)\n(.*)$')
    is_simple = prefix and kept ~= '0' and (kept ~= '' or not followed) and (said == 'replaced' or not string.find(said, '^replaced inbox '))
    if not is_simple or queue and queue.prefix ~= prefix then break end
    queue = queue or queue_of(prefix)
    local due, member = sign == '+' and now + at or at + 0, prefix .. ':' .. id
    if sign == '+' then at = text(due) end
    local score, number = next_score(queue, due, at)
    local born = kept ~= '' and kept or now_text
    local record = '2 s' .. struct.pack(HEAD, 1, 0, 0, 1, 0, born + 0, due) .. body
    is_simple = call('HSETNX', record_key(member), member, record) == 1
    if is_simple and set_trigger(prefix, id, due) then
      call('HDEL', record_key(member), member)
      is_simple = false
    end
    if not is_simple then break end
    enter(queue, id, score, number)
    if heard then heard = tell(member, 's', '1', '0', at, '-', 'created') end
    local n = #answer
    answer[n + 1], answer[n + 2], line = 'created', at .. ' ' .. born, line + 1
  end
  local added = queue and queue.first and write_entries(queue) or 0
  if added > 0 and call('HINCRBY', root .. 'counts', 's ' .. queue.prefix, text(added)) == added then
    call('ZADD', root .. 'prefixes', '0', queue.prefix)
  end
end
if line > #ARGV then
  wake_sweepers()
  return answer
end
---
local edit_lock, format, room = tonumber(ARGV[4]), tonumber(form), tonumber(places)
local SOON_MS = 1000   -- what is due by then may start before the next row of the inbox is carried out

-- Cancel the timer that was just armed, before anybody can start it. Answers its record; nothing if a caller could not.
local function cancel(prefix, id, member, said)
  local r = read(member)
  if r.due > now + SOON_MS or locked(r, edit_lock) or drop_trigger(prefix, id) then return end
  leave(prefix, id, r)
  return end_as('x', prefix, id, r, said)
end

local function arm(prefix, id, if_exists, due, said, body)
  local created, expected
  due, created, expected = due_of(due)
  if expected ~= '' and expected ~= life() then return 'lost', '' end
  local member = member_of(prefix, id)
  local r, raw, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer', raw end
  -- A row of the ledger's inbox is taken again if its pod dies before it deletes the row; it arms its timer once.
  -- If a later row cancels the timer, what that leaves in the history follows.
  local row, cancelled = string.match(said, '^replaced inbox (%S+) ?(.*)$')
  if row and call('HGET', root .. 'inbox', row) then return raw and 'kept' or 'done', raw or '' end
  if created == 0 then  -- the ledger has a timer of that name; where data was lost, its absence here says nothing
    if not r and string.sub(stage() or '', 1, 5) ~= 'whole' then return 'lost', '' end
    created = nil
  end
  if r and if_exists == 'keep' then return 'kept', raw end
  if r and if_exists == 'error' then return 'exists', raw end
  if r and r.status == 'r' then return 'running', raw end
  if r and locked(r, edit_lock) then return 'locked', raw end
  local takes_room = room and not (r and r.status == 's')
  if takes_room and room < 1 then return 'full', raw or '' end
  local refusal = set_trigger(prefix, id, due)
  if refusal then return 'rights', refusal end
  if takes_room then room = room - 1 end
  if row then call('HSET', root .. 'inbox', row, now_text) end
  if r then leave(prefix, id, r) end
  local at = enqueue(prefix, id, due)
  local code, answered = 'replaced', nil
  if r then
    answered = write(member, renew(prefix, r, due, body, row and 'replaced inbox ' .. row or said))
  else
    local life = begin(prefix, format, due, body, created)
    write(member, life)
    code, answered = 'created', at .. ' ' .. text(life.created)
  end
  local ended = row and cancelled ~= '' and cancel(prefix, id, member, cancelled)
  if ended then return 'cancelled', ended end
  return code, answered
end

for i = line, #ARGV do
  local code, raw = arm(string.match(ARGV[i], '^(%S+) (%S+) (%S+) (%S+) ([^\n]*)\n(.*)$'))
  local n = #answer
  answer[n + 1], answer[n + 2] = code, raw
end
conclude()
return answer
