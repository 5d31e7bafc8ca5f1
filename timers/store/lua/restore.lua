#!lua
-- Put records where they were, out of a copy: each whole, with its entries and counts, unless what is there is as new. So the same
-- call again changes nothing. With `look` it only says what it would do; with `tell` it says after each code what is there then, for a
-- caller that writes that to the ledger. A copy that says its place in the due index is exact: it keeps that place, and waits for its
-- bare key if it did. It comes into a db that was empty.

local expected, format, if_exists, cause, looks, tells = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6] == 'look', ARGV[6] == 'tell'
local jump = tonumber(ARGV[7])  -- not 0: what the db has lost
local is_from_ledger = jump ~= 0 or string.find(expected, '/', 1, true)
local function is_expected() return carries(expected) or string.find(expected, '/', 1, true) and life() == expected end
if not looks and not is_expected() then return {now_text, 'foreign'} end
local answer, newest = {now_text}, 0

-- Whether the first record is of a later timer of that name, or of the same one after more changes.
local function is_newer(r, there)
  if r.created ~= there.created then return r.created > there.created end
  return r.version > there.version
end

-- Whether this very copy was put there before, whatever has happened to the timer since.
local function has_entry(r)
  for entry in string.gmatch(string.match(body_of(r), '^[^\n]*\n[^\n]*(.*)$') or '', '[^\n]+') do
    if string.match(entry, '^%d+ %a %d+ %- %- %- (.*)$') == cause then return true end
  end
  return false
end

-- An older record in the place of a newer one goes on from that: versions and creation only rise, and what starts anew has an
-- idempotency key that nobody has seen.
local function go_on_from(there, r)
  local started = there.occurrence > r.occurrence or there.occurrence == r.occurrence and there.attempt > r.attempt
  if started then r.occurrence = there.occurrence + (r.status == 's' and there.attempt ~= 0 and 1 or 0) end
  r.created, r.version = there.created, math.max(r.version, there.version)
end

local function verdict(there, r, member)
  if if_exists == 'keep' or if_exists ~= 'replace' and not is_newer(r, there) then return 'kept' end
  if if_exists == 'replace' and has_entry(there) then return 'kept' end
  -- What the ledger has and this lacks was lost, and with it whatever led to this run.
  if jump == 0 and there.status == 'r' and lease_of(member) then return 'running' end
end

-- Whether the timer was removed, and the ledger does not know yet.
local function is_gone(r, member)
  local created = is_from_ledger and string.match(call('HGET', root .. 'changed', member) or '', '^(%d+) %d+ gone$')
  return created and tonumber(created) >= r.created
end

-- Put a timer into the index of its status. An entry that is there already belongs to a lost record, and is still counted.
local function index(prefix, id, member, r, since, score)
  local added = 1
  if r.status == 's' then
    if score and math.floor(tonumber(score) or -1) == r.due then
      entries[prefix] = entries[prefix] or queue_of(prefix)
      enter(entries[prefix], id, score, tonumber(score))
    else
      enqueue(prefix, id, r.due)
    end
    if r.failures ~= 0 then begin_retrying(prefix, id, since) end
  elseif r.status == 'r' then
    local held, left = lease_of(member)
    if not held or tonumber(string.match(held, '%d+$')) ~= r.token then
      call('DEL', lease_key(member))
      left = -1  -- lost by now
    end
    added = call('ZADD', root .. 'leases', text(now + left), member)
    earliest = math.min(earliest or now + left, now + left)
  else
    added = call('ZADD', finished_key(r.status, prefix), since, id)
  end
  if added == 0 then count(r.status, prefix, -1) end
end

local function restore(prefix, id, since, score, raw)
  local r, member = parse(raw), member_of(prefix, id)
  if not r or r.token >= 2 ^ 53 then return 'unreadable' end
  local there, trouble, raw_there = read(member)
  if newer_format(raw_there) then return 'newer' end
  local code = there and verdict(there, r, member) or not raw_there and is_gone(r, member) and 'kept'
  if code or looks then return code or 'restored', raw_there end
  if raw_there and not there then quarantine(prefix, id, trouble, raw_there) end
  local refusal
  if r.status == 's' then refusal = set_trigger(prefix, id, r.due)
  else refusal = drop_trigger(prefix, id) end
  if refusal then return 'rights ' .. refusal end
  if r.status ~= 'r' and not score then call('DEL', lease_key(member)) end
  if not there then
    count(r.status, prefix, 1)
    if not score and call('ZREM', queue_key(prefix), id) == 1 then
      count('s', prefix, -1)
      refresh_head(prefix)
    end
  else
    if there.status == 'r' then call('ZREM', root .. 'leases', member) else leave(prefix, id, there) end
    recount(there.status, r.status, prefix)
    if not is_newer(r, there) then go_on_from(there, r) end
    r.token = math.max(r.token, there.token)
  end
  index(prefix, id, member, r, since == '-' and now_text or since, score)
  if score and r.waits then r.status = 'w' end
  r.format, newest = format, math.max(newest, r.token)
  r.version = r.version + jump
  if cause ~= '' then note(r, cause) end
  r.said, r.kept = 'imported', tells
  return 'restored', write(member, r)
end

for i = 8, #ARGV do
  local prefix, id, since, score, from = string.match(ARGV[i], '^(%S+) (%S+) ([^/%s]+)/?(%S*)\n()')
  local code, raw = restore(prefix, id, since, score ~= '' and score or nil, string.sub(ARGV[i], from))
  answer[i - 6] = tells and raw and code .. '\n' .. raw or code
end
if newest > newest_token() then call('SET', root .. 'token', text(newest)) end
conclude()
return answer
