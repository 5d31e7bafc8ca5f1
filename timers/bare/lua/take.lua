#!lua flags=allow-oom
-- Delete a bare key that no timer waits for any more, unless it was SET again. `KEYS[1]` is the key itself.

local deadline = ARGV[2]
local same = call('PEXPIRETIME', KEYS[1]) == tonumber(deadline)
return {now_text, same and call('DEL', KEYS[1]) or 0}
