#!lua flags=allow-oom
-- Change what the db is: its epoch, its number of shards, and what it is known to have lost. KEYS[1] is `timers:meta`.

local key, act = KEYS[1], ARGV[2]
local meta = {}

local function read_meta()
  local fields = redis.pcall('HGETALL', key)
  if fields.err and act == 'renew' then
    -- Another program has overwritten it: make it again from what the pods know.
    call('DEL', key)
    fields = {}
  end
  for i = 1, #fields, 2 do meta[fields[i]] = fields[i + 1] end
  if meta.epoch == '' then meta.epoch = nil end
  return fields
end

local function set(...)
  call('HSET', key, ...)
  read_meta()
end

-- Keep a loss that several pods report as one, with the widest window and the most timers.
local function lose(what, from, to, timers)
  local f, t, n = string.match(meta['loss:' .. what] or '', '^(%d+) (%d+) (%d+)$')
  from = math.min(tonumber(f or from), tonumber(from))
  to = math.max(tonumber(t or to), tonumber(to))
  timers = math.max(tonumber(n or timers), tonumber(timers))
  set('loss:' .. what, text(from) .. ' ' .. text(to) .. ' ' .. text(timers))
end

-- The number of shards with which the epoch was made. Another program may have written another one into `shards`.
local function founded()
  local epoch, shards = string.match(meta.founded or '', '^(%S+) (%d+)$')
  return epoch == meta.epoch and shards or nil
end

local acts = {}

-- Make the meta if there is none, and again if no timer was ever armed and another number is asked for.
function acts.make(format, wanted, default, fresh)
  if meta.format and not (tonumber(meta.format) and tonumber(meta.format) <= tonumber(format)) then return end
  if meta.epoch and meta.shards and not founded() then set('founded', meta.epoch .. ' ' .. meta.shards) end
  local there = founded() or meta.shards
  if meta.epoch and (meta.armed or wanted == '' or wanted == there) then return end
  local shards = meta.armed and there or wanted ~= '' and wanted or there or default
  set('format', format, 'shards', shards, 'epoch', fresh, 'founded', fresh .. ' ' .. shards)
end

function acts.arm(epoch)
  if meta.epoch == epoch and not meta.armed then set('armed', 1) end
end

-- The old epoch is gone: make a new one unless another pod has, and keep the loss.
function acts.renew(known, fresh, format, shards, armed, closed, seen, timers)
  if meta.epoch == known then return end
  if not meta.epoch then
    set('format', format, 'shards', shards, 'epoch', fresh, 'founded', fresh .. ' ' .. shards, 'armed', 1)
  end
  if closed == '1' then set('closed', 1) end
  -- A db in which nothing was ever armed may get another number of shards; that loses nothing. And a pod that slept through a
  -- loss does not report it again after somebody has acknowledged it.
  if tonumber(meta.acknowledged or 0) > tonumber(seen) then return end
  if armed == '1' or meta.shards == shards then lose('db:' .. known, seen, now_text, timers) end
end

function acts.lose(epoch, ...)
  local parts = {...}
  for i = 1, meta.epoch == epoch and #parts or 0, 4 do lose('shard:' .. parts[i], parts[i + 1], parts[i + 2], parts[i + 3]) end
end

function acts.raise(format, version)
  local before = tonumber(meta.format)
  if not meta.epoch or not before or before >= tonumber(format) then return end
  set('format', format, 'raised', now_text .. ' ' .. meta.format .. ' ' .. version)
end

-- Put the number of shards back with which the epoch was made, and keep what stood there.
function acts.repair()
  local shards = founded()
  if not shards or shards == meta.shards then return end
  set('shards', shards, 'foreign', now_text .. ' ' .. string.sub(meta.shards or '', 1, 40))
end

-- Say that the service is being moved, or has moved: in which phase, in which move with which other db, and where that is. The
-- format that no version has stops programs of versions that know nothing of this.
function acts.move(epoch, phase, other, place)
  if meta.epoch ~= epoch then return end
  if phase == 'moved' and not string.find(meta.moving or '', ' ' .. other .. ' ', 1, true) then return end  -- somebody gave it back
  local format = string.match(meta.moving or '', '^%S+ %d+ (%d+) ')
  set('moving', phase .. ' ' .. now_text .. ' ' .. (format or meta.format) .. ' ' .. other .. ' ' .. place, 'format', '99')
  publish(ARGV[1], '{pods} changed')
end

-- Say that the service is here, and goes on.
function acts.stay(epoch, armed)
  local format = string.match(meta.moving or '', '^%S+ %d+ (%d+) ')
  if meta.epoch ~= epoch or not format then return end
  call('HDEL', key, 'moving')
  meta.moving = nil
  set('format', format)
  if armed == '1' then set('armed', 1) end
  publish(ARGV[1], '{pods} changed')
end

function acts.acknowledge()
  for field in pairs(meta) do
    if string.sub(field, 1, 5) == 'loss:' or field == 'foreign' then
      call('HDEL', key, field)
      call('HSET', key, 'acknowledged', now_text)
    end
  end
end

local found = read_meta()
if found.err then return found end
acts[act](unpack(ARGV, 3))
local answer = {}
for field, value in pairs(meta) do
  answer[#answer + 1], answer[#answer + 2] = field, value
end
return {now_text, answer}
