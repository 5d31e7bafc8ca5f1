#!lua flags=allow-oom
-- Delete a bare key that no timer waits for any more, unless it was SET again. `KEYS[1]` is the key itself.
--
-- ARGV[2]  its deadline
-- Answer   {now, 1 if it was deleted, else 0}

local same = call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[2])
return {text(now), same and call('DEL', KEYS[1]) or 0}
