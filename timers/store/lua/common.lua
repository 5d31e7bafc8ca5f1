-- Follows the first line of every script: the clock, the key names, the record's form, and the index moves that several
-- scripts share.
--
-- KEYS[1]  the shard's root, `timers:{<shard>}:`; every key of the shard is built from it, so one hash slot holds them all
-- ARGV[1]  the channel that tells the sweepers of a timer due within WAKE_HORIZON_MS; on a cluster `wake`, see `publish`
-- PROTOCOL.md lists each script's further arguments, its answer and its codes.
--
-- Numbers above 2^53 never occur (times are ms, tokens are µs); `text` writes them without an exponent or a fraction. Commands
-- that run for every timer get their numbers as text: Redis's own conversion of a Lua number costs as much as a read.

local WAKE_HORIZON_MS = 30000    -- a sweeper sleeps at most this long, so anything later is found without a wake-up
local HISTORY_STORED = 49        -- the 50th entry shown is the creation, or a marker that older ones were dropped
local TIME_DIGITS, LATEST = 13, 1e13  -- of epoch ms, until the year 2286
local JUMP = 1000                -- by how much the version of a timer rises that is restored from the ledger; as in codec.py
local NEWEST_FORMAT = 2          -- of records, that this version reads; as in identity.py
local ORDINALS = 1024            -- binary fractions of a millisecond: they keep the order of arming within one millisecond

local root = KEYS[1]
local tag = string.match(root, '{[^}]*}')

-- Every command goes through here. If another program has put a value of another type in the place of a key, it moves that value
-- aside and repeats the command: what the key held is lost, but everything else works on. A script that must not write finds
-- nothing there. A count that is not a number begins anew. `RIGHTS <command> <key>` is the error of what the user may not do.
local READS = ' GET HGET HMGET HGETALL HSCAN SMEMBERS SISMEMBER ZSCORE ZCOUNT ZRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE '
local function call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(tostring(answer.err), 'WRONGTYPE', 1, true) and string.sub(key, 1, 7) == 'timers:' then
    local moved = redis.pcall('RENAME', key, root .. 'displaced:' .. key)
    if moved.err and string.find(READS, ' ' .. command .. ' ', 1, true) then key = root .. 'nothing' end
  elseif command == 'HINCRBY' then
    redis.call('HDEL', key, (...))
  elseif not redis.acl_check_cmd(command, key, ...) then
    error({err = 'RIGHTS ' .. command .. ' ' .. key})
  end
  return redis.call(command, key, ...)
end

-- Refuse the script before it has changed anything if the user may not run one of its commands on the service's own keys.
-- `scripts.py` puts it before each script that writes, with the commands that stand in the script. A question costs 0.1 µs.
local function demand(...)
  local commands, may = {...}, redis.acl_check_cmd
  for i = 1, #commands do
    if not may(commands[i], root) then error({err = 'RIGHTS ' .. commands[i] .. ' ' .. root .. '*'}) end
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2]

local function text(number) return string.format('%d', number) end
local now_text = text(now)

-- Whether the shard belongs to the db that the caller knows. A script that makes a new timer asks this first: if the db was
-- emptied and made again with another number of shards, the timer belongs to another shard.
local function carries(epoch) return redis.pcall('GET', root .. 'epoch') == epoch end

local hashed_member, hashed_key   -- hashing a member costs as much as a command, and most are read and then written
local function record_key(member)
  if member ~= hashed_member then hashed_member, hashed_key = member, root .. 'rec:' .. string.sub(redis.sha1hex(member), 1, 2) end
  return hashed_key
end

local HEAD, HEAD_BYTES = '>I4I4I4I4I8I8I8', 43

-- Publish, and answer to how many. Nobody needs a message, so a user who may not publish changes timers all the same. A cluster
-- sends a message to all nodes but counts who hears it on this one. So there each shard has its own channels, named by their ends.
local function publish(channel, message)
  local is_own = not string.find(channel, ':', 1, true)
  local heard = redis.pcall(is_own and 'SPUBLISH' or 'PUBLISH', is_own and root .. channel or channel, message)
  return type(heard) == 'number' and heard or 0
end

-- Publish a change to those who watch. Answers whether anybody does.
local function tell(member, status, version, attempt, due, processor, said)
  local event = member .. '\n' .. status .. '\n' .. version .. '\n' .. attempt .. '\n' .. due .. '\n' .. now_text .. '\n' .. processor
  return publish((string.gsub(ARGV[1], 'wake', 'events', 1)), event .. '\n' .. said) > 0
end

-- The newest fencing token given; 0 if the counter is missing or has an impossible value.
local function newest_token()
  local newest = tonumber(redis.pcall('GET', root .. 'token'))
  return newest and newest > 0 and newest < 2 ^ 53 and math.floor(newest) or 0
end

-- Do something to trigger keys. Answers nil, or what the user may not do: `SET log:{0}:x`. A user may lack the right to the
-- triggers of one prefix alone, because they are the only keys that begin with it. So a script does this before any other change.
local function refused(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) ~= 'table' or not answer.err then return nil end
  if redis.acl_check_cmd(command, ...) then error(answer) end
  return command .. ' ' .. (...)
end

local function trigger_key(prefix, id) return prefix .. ':' .. tag .. ':' .. id end

-- Set the trigger key. Redis expires a key once its deadline is past, so for an event at the due time it ends a millisecond before
-- that; but never in the past. Answers as `refused`.
local earliest = nil
local function set_trigger(prefix, id, due)
  local refusal = refused('SET', trigger_key(prefix, id), '1', 'PXAT', text(math.max(due - 1, now + 1)))
  if not refusal and (not earliest or due < earliest) then earliest = due end
  return refusal
end

-- Tell the sweepers of a timer that is due before they would poll.
local function wake_sweepers()
  if earliest and earliest <= now + WAKE_HORIZON_MS then publish(ARGV[1], tag .. ' ' .. text(earliest)) end
end

-- The ordinal of the last entry of a millisecond, given as text; -1 if it has none, which is asked first because that costs less.
local function last_ordinal(queue, at)
  local upto = at .. '.9995'
  if call('ZCOUNT', queue, at, upto) == 0 then return -1 end
  local last = call('ZREVRANGEBYSCORE', queue, upto, at, 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return math.floor((last - at) * ORDINALS + 0.5)
end

-- The index of each queue's earliest due, so that ten thousand idle queues cost one look. It is `heads`, or `held` while the
-- queue is blocked (paused, or at a limit until a time), so that a thousand blocked queues do not hide the others.
local function heads_key(prefix) return root .. (call('ZSCORE', root .. 'blocked', prefix) and 'held' or 'heads') end

local function queue_key(prefix) return root .. 'due:' .. prefix end

-- The entries of a queue that are written together: score and id in turns.
local function queue_of(prefix)
  return {prefix = prefix, key = queue_key(prefix), heads = heads_key(prefix), least = math.huge, newest = {}}
end

-- The score of a timer, as text and as a number, behind all others of its millisecond, which is given as text too.
local function next_score(queue, due, at)
  local ordinal = math.min((queue.newest[due] or last_ordinal(queue.key, at)) + 1, ORDINALS - 1)
  queue.newest[due] = ordinal
  if ordinal == 0 then return at, due end
  -- Four digits tell the fractions apart: at these times a double next to them is the fraction itself.
  return string.format('%d.%04d', due, ordinal / ORDINALS * 10000), due + ordinal / ORDINALS
end

local function enter(queue, id, score, number)
  local n = #queue
  queue[n + 1], queue[n + 2] = score, id
  if number < queue.least then queue.first, queue.least = score, number end
end

-- Write the entries, and the queue's head if that is one of them. Answers how many were not there.
local function write_entries(queue)
  local added = call('ZADD', queue.key, unpack(queue))
  call('ZADD', queue.heads, 'LT', queue.first, queue.prefix)
  return added
end

-- The base ends here, with all that a short way may use: `scripts.py` puts what follows into a function.
---

-- Epoch ms of a due time given as `@<epoch ms>` or `+<ms from now>`. After it may stand, as `/<creation>`, that of a timer that the
-- ledger has already, which is 0 if it has another of that name; and, as `@<life>`, the only life in which it is to be armed.
local function due_of(spec)
  local sign, ms, created, expected = string.match(spec, '^([@+])(-?%d+)/?(%d*)@?(%S*)$')
  return sign == '+' and now + ms or tonumber(ms), tonumber(created), expected
end

-- Keys. `member` is `<prefix>:<id>`; a prefix has no colon, so the first colon divides it.
local function member_of(prefix, id) return prefix .. ':' .. id end
local function is_member(name) return string.find(name, '^[a-z0-9][a-z0-9_.-]*:%w[%w_.:@~+=-]*$') ~= nil end
local function lease_key(member) return root .. 'lease:' .. member end
local function bucket_key(number) return string.format('%srec:%02x', root, number) end
-- Finished timers by status; with `t` those that are retrying: scheduled, and the last attempt has failed.
local function finished_key(status, prefix)
  return root .. (status == 't' and 'retrying:' or 'finished:' .. status .. ':') .. prefix
end
-- The record: a head, then lines of JSON and of history, which are never decoded here (PROTOCOL.md has both formats of the head). It
-- keeps its format here; only what a pod writes anew, at `arm` and `settle`, has the newest that all pods read.
local TEXT = '^1 ([swrcfux]) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+\n()'

local function parse_text(raw)
  local status, version, token, attempt, failures, occurrence, due, created, body = string.match(raw, TEXT)
  if not status or #due > TIME_DIGITS or #created > TIME_DIGITS then
    local format = string.match(raw, '^(%d+) ')
    return nil, format and format ~= '1' and 'record format ' .. format .. ', this service knows 1 to ' .. NEWEST_FORMAT or 'not a record'
  end
  return {format = 1, status = status, version = tonumber(version), attempt = tonumber(attempt), failures = tonumber(failures),
          occurrence = tonumber(occurrence), token = tonumber(token), created = tonumber(created), due = tonumber(due),
          raw = raw, from = body}
end

local function parse_head(raw)
  local status = string.match(raw, '^2 ([swrcfux])')
  if not status or #raw < HEAD_BYTES then return nil, 'not a record' end
  local version, attempt, failures, occurrence, token, created, due = struct.unpack(HEAD, raw, 4)
  if due >= LATEST or created >= LATEST then return nil, 'not a record' end
  return {format = 2, status = status, version = version, attempt = attempt, failures = failures,
          occurrence = occurrence, token = token, created = created, due = due, raw = raw, from = HEAD_BYTES + 1}
end

local function parse(raw)
  if not raw then return nil, 'no record' end
  local r, trouble = (string.sub(raw, 1, 2) == '2 ' and parse_head or parse_text)(raw)
  if not r then return nil, trouble end
  -- `w` is scheduled, but also waits for its bare key: no claim takes it. Any change of the timer lets it go.
  r.waits = r.status == 'w'
  if r.waits then r.status = 's' end
  return r
end

-- Whether only a later version reads a record; false for one that nobody can read. Every format begins with its number and a space.
-- Such a record and its entries are left as they are: pods of that version have them.
local function newer_format(raw)
  local format = raw and tonumber(string.match(raw, '^(%d%d?) '))
  return format and format > NEWEST_FORMAT
end

local function read(member)
  local raw = call('HGET', record_key(member), member)
  local r, trouble = parse(raw)
  return r, trouble, raw
end

local MOST_BYTES = 1000000       -- of records in one call; what more there is, is left for the next one

-- Show the records of some buckets to `visit`, from a place on until `has_enough`. Answers where to go on.
local function walk(bucket, last, cursor, most, visit, has_enough)
  while bucket <= last and not has_enough() do
    local page = call('HSCAN', bucket_key(bucket), cursor, 'COUNT', text(most))
    for i = 1, #page[2], 2 do visit(page[2][i], page[2][i + 1]) end
    cursor = page[1]
    if cursor == '0' then bucket = bucket + 1 end
  end
  return bucket, cursor
end

-- What follows the head: Lua hashes each string that it makes, so it is only taken out where it is needed.
local function body_of(r) return r.body or string.sub(r.raw, r.from) end

-- Whether a hook asks for an event of a prefix.
local function asks(lines, letter, prefix)
  for _, line in ipairs(lines) do
    local letters, pattern = string.match(line, '^(%a+) (%S+)')
    local beginning = pattern and string.match(pattern, '^(.*)%*$')
    local meant = pattern == prefix or beginning and string.sub(prefix, 1, #beginning) == beginning
    if meant and string.find(letters, letter, 1, true) then return true end
  end
  return false
end

-- Put a change that a hook asks for into the outbox, with the record as it is now. The first entry wakes a pod. A script reads
-- `hooks` once. No hook asks for the service's own timers, `timers.…`, because they are the calls.
local OUTBOX_LIMIT = 1000000     -- with so many entries that no pod has taken, further changes are only counted
local hooks = nil
local function post(member, r, said, raw)
  if string.sub(member, 1, 7) == 'timers.' then return end
  -- Events by cause, where the status does not say them; '' means no event.
  local told = {completed = 'c', skipped = 'c', failed = 'f', retry = 't', snoozed = '', ['handed-back'] = '',
                ['bare-due'] = '', imported = '', purged = ''}
  local letter = told[string.match(said, '^%S+')] or (r.status == 's' or r.status == 'w') and 'a' or r.status
  if letter == '' or not asks(hooks, letter, string.match(member, '^[^:]*')) then return end
  local outbox = root .. 'outbox'
  local waiting = call('XLEN', outbox)
  if waiting >= OUTBOX_LIMIT then return call('INCRBY', root .. 'unposted', 1) end
  call('XADD', outbox, '*', 'event', letter, 'timer', member, 'record', raw)
  if waiting == 0 then publish(ARGV[1], tag .. ' outbox') end
end

-- What hooks ask for. Whether there is a ledger is in a field beside them, `@ledger`, and in `@moving` whether the service is being
-- moved or has moved: then what it says, `<phase> <place>`. No hook can have such a name. Every change asks this anyway. `reported` says
-- whether hooks or a ledger ask.
local followed, moving = false, nil
local reported = false
local function ask()
  local lines = {}
  for _, line in ipairs(call('HKEYS', root .. 'hooks')) do
    if line == '@ledger' then followed = true
    elseif line == '@moving' then moving = call('HGET', root .. 'hooks', line)
    else lines[#lines + 1] = line end
  end
  reported = followed or #lines > 0
  return lines
end

-- Whether nothing may change here because the service is being moved or has moved. Scripts that make timers need not ask: such a
-- shard carries a stamp that nobody knows.
local function moves()
  hooks = hooks or ask()
  return moving
end

-- Refuse a caller's change while the service is moved.
local function stay()
  if moves() then error({err = 'MOVING ' .. moving}) end
end

-- Note for the ledger what has changed: `<creation> <version>` of the record, and ` gone` if it was removed. Whoever copies it
-- takes the note away if it is still the same, so there is at most one for each timer. What the ledger has already is `kept`.
-- `conclude` writes the notes together.
local noted = {}
local function write_notes()
  if #noted > 0 then call('HSET', root .. 'changed', unpack(noted)) end
  noted = {}
end
local function follow(member, r)
  if r.kept then return end
  if #noted >= 2000 then write_notes() end  -- Lua's stack is small
  local n = #noted
  noted[n + 1], noted[n + 2] = member, string.format('%d %d%s', r.created, r.version, r.gone or '')
end

-- What the server says of itself; empty where nobody may ask.
local about
local function about_server()
  local section = 'server'
  local info = about or redis.pcall('INFO', section)
  about = type(info) == 'string' and info or ''
  return about
end

-- The run id of this server's process; `-` for a user who may not ask.
local function server_here() return string.match(about_server(), 'run_id:(%w+)') or '-' end

-- What names the time until the shard's data is lost, or an older copy takes its place: the server's process, and what it carries.
local function life()
  local carried = redis.pcall('GET', root .. 'epoch')
  return server_here() .. '/' .. (type(carried) == 'string' and string.gsub(carried, ' ', ':') or '')
end

-- How far the shard and the ledger have come to agree, in words: `<what> <place>`; nil without a ledger. It is kept with the server
-- on which it was reached. Another one may have an older copy of the data, so there it is `check <ms>`: since when it may be older.
local function stage()
  local said = call('HGET', root .. 'hooks', '@ledger')
  if not said then return nil end
  local reached, server = string.match(said, '^(%l+ %S+) (%S+)$')
  local here = server_here()
  if reached and (server == here or here == '-') then return reached end
  local uptime = tonumber(string.match(about_server(), 'uptime_in_seconds:(%d+)'))
  return 'check ' .. (string.match(said, '^whole (%d+)') or '0'), uptime
end

-- Whether the data may be an older copy, in which timers are due, and runs have lost their lease, that have ended since. The ledger's
-- pod puts that right first, unless it does not come within CHECK_SECONDS of the server's start.
local CHECK_SECONDS = 30
local function unchecked()
  hooks = hooks or ask()
  if not followed then return false end
  local _, uptime = stage()
  return uptime ~= nil and uptime < CHECK_SECONDS
end

local function set_stage(reached) call('HSET', root .. 'hooks', '@ledger', reached .. ' ' .. server_here()) end

-- Publish every change to those who watch. The first PUBLISH tells whether anybody does; if nobody does, it is the script's last.
local watched = true
local function announce(member, r, said, raw)
  hooks = hooks or ask()
  if reported then
    if followed then follow(member, r) end
    if #hooks > 0 then post(member, r, said, raw) end
  end
  if watched then watched = tell(member, r.status, r.version, r.attempt, text(r.due), r.processor or '-', said) end
end

local function put(member, r, said, raw)
  call('HSET', record_key(member), member, raw)
  announce(member, r, said, raw)
  return raw
end

local function compose(r)
  local body = body_of(r) .. (r.added or '')
  if r.format == 2 then
    return '2 ' .. r.status
      .. struct.pack(HEAD, r.version, r.attempt, r.failures, r.occurrence, r.token, r.created, r.due) .. body
  end
  return string.format('1 %s %d %d %d %d %d %d %d %d\n',
    r.status, r.version, r.token, r.attempt, r.failures, r.occurrence, r.due, r.created, r.version - 1) .. body
end

local function write(member, r) return put(member, r, r.said or 'created', compose(r)) end

-- Replace the spec and/or the progress; nil keeps what is there.
local function set_body(r, spec, progress)
  local old_spec, old_progress, history = string.match(body_of(r), '^([^\n]*)\n([^\n]*)(.*)$')
  r.body = (spec or old_spec) .. '\n' .. (progress or old_progress) .. history
end

-- Add a history entry: `said` is a cause (timers/core/model.py) and, after a space, what only this entry knows. A start also
-- has a pod, a lateness and a processor; an end has in the place of the lateness how long claiming, waiting and running took.
-- Every change of a record has an entry, so each change raises the version.
local function note(r, said, pod, lateness, processor)
  r.said, r.processor = said, processor
  r.version = r.version + 1
  if r.version > HISTORY_STORED + 1 then
    local body, history = string.match(body_of(r), '^([^\n]*\n[^\n]*)(.*)$')
    local from = string.find(history, '\n', 2, true) or #history + 1
    -- A restored timer has a version far above the number of its entries.
    if r.version > JUMP and select(2, string.gsub(history, '\n', '')) < HISTORY_STORED then from = 1 end
    r.body = body .. string.sub(history, from)
  end
  r.added = '\n' .. now_text .. ' ' .. r.status .. ' ' .. r.attempt .. ' ' .. (pod or '-') .. ' '
    .. (lateness or '-') .. ' ' .. (processor or '-') .. ' ' .. said
end

local tallies = {}

local function count(status, prefix, by)
  local of_prefix = tallies[prefix] or {}
  tallies[prefix] = of_prefix
  of_prefix[status] = (of_prefix[status] or 0) + by
end

local function recount(from, to, prefix)
  if from ~= to then count(from, prefix, -1); count(to, prefix, 1) end
end

-- End a timer that does not run, or whose run is lost, with a status. Answers its record.
local function end_as(status, prefix, id, r, said, pod)
  recount(r.status, status, prefix)
  r.status = status
  note(r, said, pod)
  call('ZADD', finished_key(status, prefix), now_text, id)
  return write(member_of(prefix, id), r)
end

-- True within the edit lock before the due time. What is overdue, behind a pause say, can be changed until it is claimed.
local function locked(r, edit_lock_ms) return r.status == 's' and now < r.due and now > r.due - edit_lock_ms end

-- Read a timer that a caller wants to change. Answers also why nobody may, whatever the change is. An empty version stands for any.
-- `expected` is a version, or nothing, and after an `@` the only life in which it is to be changed.
local function to_change(prefix, id, expected, edit_lock_ms)
  stay()
  local version, its_life = string.match(expected, '^([^@]*)@?(.*)$')
  if its_life ~= '' and its_life ~= life() then return nil, '', 'lost' end
  if its_life ~= '' then followed, reported = true, true end  -- there is a ledger, though no pod may have begun to follow it here
  local r, _, raw = read(member_of(prefix, id))
  local code
  if not r then code = newer_format(raw) and 'newer' or 'missing'
  elseif version ~= '' and tonumber(version) ~= r.version then code = 'version'
  elseif r.status == 'r' then code = 'running'
  elseif locked(r, tonumber(edit_lock_ms)) then code = 'locked' end
  return r, raw, code
end

local function refresh_head(prefix)
  local first = call('ZRANGE', queue_key(prefix), '0', '0', 'WITHSCORES')
  if first[2] then call('ZADD', heads_key(prefix), first[2], prefix)
  else call('ZREM', heads_key(prefix), prefix) end
end

-- Block a queue until a time (epoch ms, '+inf'); nil lets it go on.
local function block(prefix, until_ms)
  call('ZREM', heads_key(prefix), prefix)
  if until_ms then call('ZADD', root .. 'blocked', until_ms, prefix)
  else call('ZREM', root .. 'blocked', prefix) end
  refresh_head(prefix)
end

-- Remove a record. A token is nearly always behind the millisecond in which its timer was created; else the newest one is made so.
-- With a ledger this holds for timers that never ran too, because it tells two lives of a name apart by their creation.
local function remove(member, r)
  call('HDEL', record_key(member), member)
  r.gone, hooks = ' gone', hooks or ask()
  if followed then follow(member, r) end
  local after = (r.created + 1) * 1000
  if (r.token ~= 0 or followed) and r.token < after and newest_token() < after then
    call('SET', root .. 'token', text(after))
  end
end

-- How many timers of a prefix are retrying, in an index by that number. Timers that never fail cost nothing.
local function refresh_retrying(prefix)
  local number = call('ZCARD', finished_key('t', prefix))
  if number > 0 then call('ZADD', root .. 'retrying', number, prefix)
  else call('ZREM', root .. 'retrying', prefix) end
end

local function begin_retrying(prefix, id, since)
  call('ZADD', finished_key('t', prefix), since, id)
  refresh_retrying(prefix)
end

-- Call it for a scheduled timer that is about to be anything else, while its record still has its failures.
local function end_retrying(prefix, id, r)
  if r.failures ~= 0 and call('ZREM', finished_key('t', prefix), id) == 1 then refresh_retrying(prefix) end
end

-- The record of a new timer. It is created now, but no earlier than the newest token. `remove` sees to it that this is after the
-- creation of every earlier timer of that name that ran, also if the server's clock was set back. So no idempotency key, which has the
-- creation in it, ever comes again.
local birth = nil
local function begin(prefix, format, due, body, created)
  count('s', prefix, 1)
  birth = birth or math.max(now, math.floor(newest_token() / 1000))
  return {format = format, status = 's', version = 1, token = 0, attempt = 0, failures = 0, occurrence = 1, due = due,
          created = created or birth, kept = created, body = body}
end

-- A record that is armed anew. It is scheduled and keeps the timer's token, because tokens only grow. If the last occurrence has
-- started, it is the next one; otherwise one idempotency key would stand for two different runs.
local function renew(prefix, r, due, body, said)
  if r.attempt ~= 0 then r.occurrence = r.occurrence + 1 end
  recount(r.status, 's', prefix)
  r.status, r.attempt, r.failures, r.due = 's', 0, 0, due
  set_body(r, string.match(body, '^([^\n]*)\n([^\n]*)$'))
  note(r, said)
  return r
end

-- A lease and its ms left. It is `<pod> <token>` with a TTL; anything else in its place is foreign.
local function lease_of(member)
  local key = lease_key(member)
  local held = redis.pcall('GET', key)
  local left = type(held) == 'string' and string.find(held, '^.+ %d+$') and call('PTTL', key) or -1
  if left >= 0 then return held, left end
end

local function take_lease(member, pod, token, lease_ms)
  local key, value = lease_key(member), pod .. ' ' .. token
  if call('SET', key, value, 'NX', 'PX', lease_ms) then return true end
  if lease_of(member) then return false end
  call('SET', key, value, 'PX', lease_ms)
  return true
end

-- Put a timer into the due index, behind all others of its millisecond. Answers its due time as text. The entries of a queue are
-- written together, by `flush`.
local entries = {}
local function enqueue(prefix, id, due)
  entries[prefix] = entries[prefix] or queue_of(prefix)
  local at = text(due)
  enter(entries[prefix], id, next_score(entries[prefix], due, at))
  return at
end

local function flush(prefix)
  local queue = entries[prefix]
  if not queue then return end
  entries[prefix] = nil
  -- An entry that is there already belongs to a lost record and is still counted.
  local known = #queue / 2 - write_entries(queue)
  if known > 0 then count('s', prefix, -known) end
end

-- The deadline of a bare key that the shard knows; nil if it knows none. A score that is no time is foreign, and goes.
local function known_deadline(member)
  local score = tonumber(call('ZSCORE', root .. 'bare', member) or '')
  if score and score >= 0 and score < 2 ^ 53 then return score end
  if score then call('ZREM', root .. 'bare', member) end
end

local function drop_trigger(prefix, id) return refused('DEL', trigger_key(prefix, id)) end

-- Set the trigger if that is allowed, and put the timer into the due index. A sweep finds a timer without a trigger.
local function schedule(prefix, id, due)
  set_trigger(prefix, id, due)
  enqueue(prefix, id, due)
end

-- Take a scheduled or finished timer out of its index. Its trigger stays.
local function leave(prefix, id, r)
  if r.status ~= 's' then
    call('ZREM', finished_key(r.status, prefix), id)
    return
  end
  flush(prefix)
  call('ZREM', queue_key(prefix), id)
  end_retrying(prefix, id, r)
  refresh_head(prefix)
end

local function has_counts(prefix, ask)
  for status in string.gmatch('srcfux', '.') do
    if ask('HGET', root .. 'counts', status .. ' ' .. prefix) then return true end
  end
  return false
end

-- Add to a prefix's counts, and keep the index of the prefixes that have any. Deletes a count of zero, and a prefix without
-- counts: callers choose prefixes, and each would otherwise stay for ever. A start or an end only moves a count and costs nothing.
local function tally(prefix, by_status)
  local counts, began, ended, sum = root .. 'counts', false, false, 0
  for status, by in pairs(by_status) do
    local field = status .. ' ' .. prefix
    local n = by ~= 0 and call('HINCRBY', counts, field, text(by))
    if n == 0 then call('HDEL', counts, field) end
    began, ended, sum = began or n == by, ended or n == 0, sum + by
  end
  if began and sum > 0 then call('ZADD', root .. 'prefixes', '0', prefix)
  elseif ended and sum < 0 and not has_counts(prefix, call) then call('ZREM', root .. 'prefixes', prefix) end
end

-- Call once, last: adds up the counters, writes the notes for the ledger, and wakes the sweepers.
local function conclude()
  write_notes()
  for prefix in pairs(entries) do flush(prefix) end
  for prefix, by_status in pairs(tallies) do tally(prefix, by_status) end
  wake_sweepers()
end

-- Take `n` fresh tokens and return the newest. The counter alone could repeat tokens: if the server loses its last seconds, it
-- goes back with the data. The clock does not, so a token is never behind its microseconds.
local function take_tokens(n)
  local top = math.max(newest_token(), now_us) + n
  call('SET', root .. 'token', text(top))
  return top
end

-- Take a record that cannot be read out of every index and count, and keep it aside with the reason. So one bad record stops
-- nothing else. Not for a record of a newer format, which is not bad.
local function quarantine(prefix, id, reason, raw)
  local member = member_of(prefix, id)
  local function out(index, name, status)
    if call('ZREM', index, name) == 1 then count(status, prefix, -1) end
  end
  drop_trigger(prefix, id)
  call('DEL', lease_key(member))
  out(queue_key(prefix), id, 's')
  out(root .. 'leases', member, 'r')
  for status in string.gmatch('cfux', '.') do out(finished_key(status, prefix), id, status) end
  if call('ZREM', finished_key('t', prefix), id) == 1 then refresh_retrying(prefix) end
  refresh_head(prefix)
  call('HDEL', record_key(member), member)
  call('HSET', root .. 'quarantine', member, now_text .. ' ' .. reason .. '\n' .. (raw or ''))
end

-- Quarantine a timer whose record cannot be read. One of a newer format stays as it is; answers whether it is one.
local function set_aside(prefix, id, trouble, raw)
  if newer_format(raw) then return true end
  quarantine(prefix, id, trouble, raw)
  return false
end

-- As `set_aside`, and list it: in `newer` with its record, or in `bad` with the reason.
local function leave_out(prefix, id, trouble, raw, newer, bad)
  local stays = set_aside(prefix, id, trouble, raw)
  local list = stays and newer or bad
  list[#list + 1], list[#list + 2] = member_of(prefix, id), stays and raw or trouble
end

-- The record of a timer to be armed anew, how it is stored, and whether it has a newer format.
local function read_or_clear(prefix, id, member)
  local r, trouble, raw = read(member)
  return r, raw, raw and not r and set_aside(prefix, id, trouble, raw)
end
