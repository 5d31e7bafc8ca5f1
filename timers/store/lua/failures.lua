#!lua flags=no-writes
-- Read the newest ends of a queue and their reasons, without payloads, to group failures. Changes nothing.
--
-- ARGV[2]  letter of the finished status   ARGV[3] prefix   ARGV[4] most   ARGV[5] bytes after which it stops
-- Answer   {now, {id, when it ended, progress (JSON or nothing), …}}

local answer, bytes = {}, 0
local found = call('ZRANGE', finished_key(ARGV[2], ARGV[3]), 0, ARGV[4] - 1, 'REV', 'WITHSCORES')
for i = 1, #found, 2 do
  if bytes > tonumber(ARGV[5]) then break end
  local r = read(member_of(ARGV[3], found[i]))
  local progress = r and string.match(body_of(r), '^[^\n]*\n([^\n]*)') or ''
  bytes = bytes + #progress
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = found[i + 1]
  answer[#answer + 1] = progress
end
return {text(now), answer}
