#!lua flags=allow-oom
-- One alarm of the fleet: what pods noted, and which messages they armed. KEYS[1] is the root `timers:{alarms}:`.

local PREFIXES = 20     -- counted one by one; all further ones only in the total
local NEWEST = 5        -- counted timers that are named
local kind, act = ARGV[2], ARGV[3]
local key = root .. kind

local function number(field) return tonumber(call('HGET', key, field) or 0) or 0 end

local acts = {}

function acts.note(newest)
  call('HSETNX', key, 'since', now_text)
  call('HSET', key, 'noted', now_text, 'newest', newest)
end

-- The last `most` items of these JSON lists, as one. Each item is a line.
local function last(most, ...)
  local all = {}
  for _, list in ipairs({...}) do
    for line in string.gmatch(string.match(list, '^%[(.*)%]$') or '', '[^\n]+') do
      all[#all + 1] = string.match(line, '^(.-),?$')
    end
  end
  return '[' .. table.concat(all, ',\n', math.max(#all - most + 1, 1)) .. ']'
end

local function place(id)
  local ms, number = string.match(id or '', '^(%d+)-(%d+)$')
  return tonumber(ms or 0), tonumber(number or 0)
end

-- Pods read an outbox from its beginning, so an entry up to the newest counted was counted before.
function acts.count(newest, shard, ...)
  local entries, counted, field = {...}, root .. 'counted', kind .. ' ' .. shard
  local last_ms, last_number = place(call('HGET', counted, field))
  local more, fresh = {}, 0
  for i = 1, #entries, 2 do
    local ms, number = place(entries[i])
    if ms > last_ms or ms == last_ms and number > last_number then
      more[entries[i + 1]], fresh = (more[entries[i + 1]] or 0) + 1, fresh + 1
    end
  end
  if fresh == 0 then return end
  call('HSET', counted, field, entries[#entries - 1])
  acts.note(last(NEWEST, call('HGET', key, 'newest') or '[]', last(fresh, newest)))
  for prefix, n in pairs(more) do
    call('HINCRBY', key, 'count', n)
    if call('HEXISTS', key, 'of ' .. prefix) == 1 or call('HLEN', key) < PREFIXES + 6 then
      call('HINCRBY', key, 'of ' .. prefix, n)
    end
  end
end

function acts.look(gather_ms, again_ms, calm_ms)
  if number('since') == 0 then return end
  if number('number') == 0 then return now - number('since') >= tonumber(gather_ms) and 'began' end
  if now - number('noted') >= tonumber(calm_ms) then return 'ended' end
  return now - number('told') >= tonumber(again_ms) and number('noted') > number('told') and 'goes on'
end

-- Whatever was noted after the end was decided begins another alarm.
function acts.told(since, told, what, noted, count)
  if number('since') ~= tonumber(since) or number('number') ~= tonumber(told) then return end
  if what ~= 'ended' then
    call('HSET', key, 'number', told + 1, 'told', now_text)
    return
  end
  local later, more, newest = text(number('noted')), number('count') - count, call('HGET', key, 'newest')
  if more > 0 then newest = last(more, newest) end
  call('DEL', key)
  if later ~= noted then call('HSET', key, 'since', now_text, 'noted', later, 'newest', newest, 'count', more) end
end

local due = acts[act](unpack(ARGV, 4))   -- a look says which message is due
return {now_text, due or '', call('HGETALL', key)}
