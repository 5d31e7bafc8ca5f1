#!lua flags=no-writes
-- Find what the caller's Redis user may not do. Runs none of the commands.

local denied = {}
for i = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i], '[^%s|]+') do words[#words + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))   -- a command that was renamed away is not known
  if not (known and may) then denied[#denied + 1] = ARGV[i] end
end
return {now_text, denied}
