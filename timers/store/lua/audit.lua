#!lua flags=allow-oom
-- Compare records, indexes, heads and counts of a shard, one part at a time, and repair what disagrees. The record is right; an
-- entry without a readable record is quarantined. Each part is atomic, so no change under way looks like damage.

local part, repairs = ARGV[2], ARGV[3] == 'repair' and not moves()
local FIRST = 4
local LISTED = 5000   -- above this many, runs are not counted by prefix: it would take too long
local found, prefixes = {}, {}
local next_place, next_cursor = -1, '0'

-- Count what disagrees; answers whether to repair it.
local function wrong(what)
  found[what] = (found[what] or 0) + 1
  return repairs
end

-- Like `call`, but with `look` it moves nothing aside.
local peek = repairs and call or redis.pcall
local function size(key) return tonumber(peek('ZCARD', key)) or 0 end
local function score_in(key, name) return tonumber(peek('ZSCORE', key, name)) end

local function check_scheduled(prefix, id, member, r)
  if r.waits and not score_in(root .. 'bare', member) then
    if wrong('bare') then call('ZADD', root .. 'bare', text(r.due), member) end
  end
  if r.failures ~= 0 and not score_in(finished_key('t', prefix), id) then
    if wrong('retrying') then begin_retrying(prefix, id, now_text) end
  end
  local score = score_in(queue_key(prefix), id)
  if score and math.floor(score) == r.due then return end
  if not wrong('due') then return end
  call('ZREM', queue_key(prefix), id)
  schedule(prefix, id, r.due)
end

local function check_running(member)
  if score_in(root .. 'leases', member) then return end
  if not wrong('leases') then return end
  local ends = now + math.max(call('PTTL', lease_key(member)), 0)
  call('ZADD', root .. 'leases', text(ends), member)
  earliest = math.min(earliest or ends, ends)
end

local function check_finished(prefix, id, status)
  local key = finished_key(status, prefix)
  if score_in(key, id) then return end
  if wrong('finished') then call('ZADD', key, now_text, id) end
end

local function check_record(bucket, member, raw)
  local r, trouble = parse(raw)
  local prefix, id = string.match(member, '^([^:]*):(.*)$')
  if not is_member(member) then
    if not wrong('unreadable') then return end
    call('HDEL', bucket, member)
    return call('HSET', root .. 'quarantine', member, now_text .. ' not the name of a timer\n' .. raw)
  end
  prefixes[prefix] = true
  if newer_format(raw) then return end
  if not r then
    if wrong('unreadable') then quarantine(prefix, id, trouble, raw) end
    return
  end
  if r.status == 's' then check_scheduled(prefix, id, member, r)
  elseif r.status == 'r' then check_running(member)
  else check_finished(prefix, id, r.status) end
end

local parts = {}

-- Is each record in the index of its status?
function parts.records(bucket, cursor, most)
  bucket, most = tonumber(bucket), tonumber(most)
  while bucket < 256 and most > 0 do
    local answer = peek('HSCAN', bucket_key(bucket), cursor, 'COUNT', most)
    for i = 1, #answer[2], 2 do check_record(bucket_key(bucket), answer[2][i], answer[2][i + 1]) end
    most, cursor = most - #answer[2] / 2, answer[1]
    if cursor == '0' then bucket = bucket + 1 end
  end
  if bucket < 256 then next_place, next_cursor = bucket, cursor end
end

-- Which records can be read (again)? An earlier version puts those of a newer format aside. `records` then repairs their entries.
function parts.quarantine(_, cursor, most)
  local answer = peek('HSCAN', root .. 'quarantine', cursor, 'COUNT', most)
  for i = 1, #answer[2], 2 do
    local member, raw = answer[2][i], string.match(answer[2][i + 1], '^[^\n]*\n(.*)$')
    local is_back = is_member(member) and parse(raw) and peek('HEXISTS', record_key(member), member) == 0
    if is_back and wrong('put back') then
      call('HSET', record_key(member), member, raw)
      call('HDEL', root .. 'quarantine', member)
    end
  end
  if answer[1] ~= '0' then next_place, next_cursor = 0, answer[1] end
end

local function check_entry(key, prefix, id, member, status)
  local r, trouble, raw = read(member)
  if r and (r.status == status or status == 't' and r.status == 's' and r.failures ~= 0) then return end
  if newer_format(raw) then return end
  if not wrong(r and 'left over' or 'no record') then return end
  if not r then quarantine(prefix, id, trouble, raw) end
  call('ZREM', key, status == 'r' and member or id)
end

local function check_entries(name, cursor, most)
  local key = root .. name
  local status, prefix = string.match(name, '^finished:(.):(.*)$')
  if name == 'leases' then status = 'r'
  elseif string.sub(name, 1, 9) == 'retrying:' then status, prefix = 't', string.sub(name, 10)
  elseif not status then status, prefix = 's', string.sub(name, 5) end
  local answer = peek('ZSCAN', key, cursor, 'COUNT', most)
  for i = 1, #answer[2], 2 do
    local entry = answer[2][i]
    if prefix then check_entry(key, prefix, entry, member_of(prefix, entry), status)
    else
      local of, id = string.match(entry, '^([^:]*):(.*)$')
      if of then check_entry(key, of, id, entry, status) end
    end
  end
  return answer[1], #answer[2] / 2
end

-- Does each entry of an index have a record of that status?
function parts.entries(place, cursor, most, ...)
  local names, looked = {...}, nil
  most = tonumber(most)
  for i = place + 1, #names do
    cursor, looked = check_entries(names[i], cursor, most)
    most = most - looked - 1
    if cursor ~= '0' then next_place, next_cursor = i - 1, cursor; return end
    if most <= 0 then next_place = i < #names and i or -1; return end
  end
end

-- How many entries each prefix has in an index over all prefixes; nil if the index is too long.
local function by_prefix(key)
  local numbers = {}
  if size(key) > LISTED then return nil end
  for _, member in ipairs(peek('ZRANGE', key, 0, -1)) do
    local prefix = string.match(member, '^[^:]*')
    numbers[prefix] = (numbers[prefix] or 0) + 1
  end
  return numbers
end

local function check_count(status, prefix, there)
  local field = status .. ' ' .. prefix
  local counted = peek('HGET', root .. 'counts', field)
  if counted == (there > 0 and text(there)) then return end
  if not wrong('counts') then return end
  if there > 0 then call('HSET', root .. 'counts', field, there) else call('HDEL', root .. 'counts', field) end
end

local function check_indexed(prefix)
  local index, score = root .. 'prefixes', (prefix == '~' or has_counts(prefix, peek)) and 0 or nil
  if score_in(index, prefix) == score then return end
  if not wrong('prefixes') then return end
  if score then call('ZADD', index, score, prefix) else call('ZREM', index, prefix) end
end

local function check_retrying(prefix)
  if (score_in(root .. 'retrying', prefix) or 0) == size(finished_key('t', prefix)) then return end
  if wrong('counts') then refresh_retrying(prefix) end
end

local function check_head(prefix)
  local first = peek('ZRANGE', queue_key(prefix), 0, 0, 'WITHSCORES')[2]
  local other = root .. (heads_key(prefix) == root .. 'heads' and 'held' or 'heads')
  if score_in(heads_key(prefix), prefix) == tonumber(first) and not score_in(other, prefix) then return end
  if not wrong('heads') then return end
  call('ZREM', other, prefix)
  refresh_head(prefix)
  if first then earliest = math.min(earliest or math.huge, math.floor(tonumber(first))) end
end

-- Is the head the earliest due, do the counts agree with the indexes, and `prefixes` with them?
function parts.queues(...)
  local runs = by_prefix(root .. 'leases')
  for _, prefix in ipairs({...}) do
    check_head(prefix)
    if runs then check_count('r', prefix, runs[prefix] or 0) end
    check_count('s', prefix, size(queue_key(prefix)))
    check_retrying(prefix)
    for status in string.gmatch('cfux', '.') do
      check_count(status, prefix, size(finished_key(status, prefix)))
    end
    check_indexed(prefix)
  end
end

-- Are those with counts indexed, and no others? `~`, which is none, is put in: the index is whole.
function parts.prefixes(...)
  for _, prefix in ipairs({...}) do check_indexed(prefix) end
end

-- Are there more records than counted? It repairs nothing; `records` does.
function parts.totals()
  local records, counted = 0, 0
  for bucket = 0, 255 do records = records + (tonumber(peek('HLEN', bucket_key(bucket))) or 0) end
  local counts = peek('HGETALL', root .. 'counts')
  for i = 2, #counts, 2 do counted = counted + (tonumber(counts[i]) or 0) end
  if records > counted then found['uncounted records'] = records - counted end
end

parts[part](unpack(ARGV, FIRST))
conclude()
local told, seen = {}, {}
for what, number in pairs(found) do
  told[#told + 1], told[#told + 2] = what, number
end
for prefix in pairs(prefixes) do seen[#seen + 1] = prefix end
return {now_text, told, next_place, next_cursor, seen}
