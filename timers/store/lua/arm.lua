#!lua
-- Arm timers: for each, write record, due index and trigger key at once, or nothing.

local epoch, format, edit_lock, room = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not carries(epoch) then return {now_text, 'foreign'} end
local answer, born, born_text = {now_text}, nil, nil

-- Make a timer if its name is free: most are, and asking first would cost as much as writing. Answers nothing if a record is there.
local function make(prefix, id, member, due, created, body, row)
  local life = new_life(prefix, nil, format, due, body, nil, created)
  local raw = compose(life)
  local made = call('HSETNX', record_key(member), member, raw) == 1
  local refusal = made and set_trigger(prefix, id, due)
  if refusal then call('HDEL', record_key(member), member) end
  if refusal or not made then
    count('s', prefix, -1)
    return refusal and 'rights', refusal
  end
  if room then room = room - 1 end
  if row then call('HSET', root .. 'inbox', row, now_text) end
  announce(member, life, 'created', raw)
  if born ~= life.created then born, born_text = life.created, text(life.created) end  -- mostly one for all
  return 'created', enqueue(prefix, id, due) .. ' ' .. born_text
end

local function arm(prefix, id, if_exists, due, said, body)
  local created
  due, created = due_of(due)
  local member = member_of(prefix, id)
  -- A row of the ledger's inbox is taken again if its pod dies before it deletes the row; it arms its timer once.
  local row = said ~= 'replaced' and string.match(said, '^replaced inbox (%S+)$')
  if not row and not room then
    local code, words = make(prefix, id, member, due, created, body)
    if code then return code, words end
  end
  local r, raw, newer = read_or_clear(prefix, id, member)
  if newer then return 'newer', raw end
  if row and call('HGET', root .. 'inbox', row) then return raw and 'kept' or 'done', raw or '' end
  if r and if_exists == 'keep' then return 'kept', raw end
  if r and if_exists == 'error' then return 'exists', raw end
  if r and r.status == 'r' then return 'running', raw end
  if r and locked(r, edit_lock) then return 'locked', raw end
  local takes_room = room and not (r and r.status == 's')
  if takes_room and room < 1 then return 'full', raw or '' end
  if not r then return make(prefix, id, member, due, created, body, row) end
  local refusal = set_trigger(prefix, id, due)
  if refusal then return 'rights', refusal end
  if takes_room then room = room - 1 end
  leave(prefix, id, r)
  enqueue(prefix, id, due)
  if row then call('HSET', root .. 'inbox', row, now_text) end
  return 'replaced', write(member, new_life(prefix, r, format, due, body, said))
end

for i = 6, #ARGV do
  local prefix, id, if_exists, due, said, body = string.match(ARGV[i], '^(%S+) (%S+) (%S+) (%S+) ([^\n]*)\n(.*)$')
  local code, raw = arm(prefix, id, if_exists, due, said, body)
  local n = #answer
  answer[n + 1], answer[n + 2] = code, raw
end
conclude()
return answer
