#!lua flags=no-writes
-- Read records for an exact copy, bucket after bucket: each as `restore` takes it, with its places in the indexes.

local bucket, last, cursor, most = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local copies, bad, bytes = {}, {}, 0

local function since(prefix, id, r)
  if r.status == 'r' or r.status == 's' and r.failures == 0 then return '-' end
  return call('ZSCORE', finished_key(r.status == 's' and 't' or r.status, prefix), id) or '-'
end

local function copy(member, raw)
  local r, trouble = parse(raw)
  local prefix, id = string.match(member, '^([^:]*):(.*)$')
  if not r or not is_member(member) then
    bad[#bad + 1], bad[#bad + 2], bad[#bad + 3] = member, trouble or 'no name of a timer', raw
    return
  end
  local score = r.status == 's' and call('ZSCORE', queue_key(prefix), id) or '-'
  local n = #copies
  copies[n + 1], copies[n + 2] = member, prefix .. ' ' .. id .. ' ' .. since(prefix, id, r) .. '/' .. score .. '\n' .. raw
  bytes = bytes + #raw
end

bucket, cursor = walk(bucket, last, cursor, most, copy, function() return #copies >= 2 * most or bytes >= MOST_BYTES end)
return {now_text, bucket, cursor, copies, bad}
