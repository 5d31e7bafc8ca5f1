#!lua flags=no-writes
-- What the caller's user of the server may not do. Runs none of the commands.
--
-- ARGV[2…] commands with the keys and channels that count, with spaces between: `SET log:x 1`
-- Answer   {now, {command, …}}: those that are denied

local denied = {}
for i = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i], '%S+') do words[#words + 1] = word end
  if not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = ARGV[i] end
end
return {text(now), denied}
