#!lua flags=allow-oom
-- Arm a canary. Works on a full server too, because whether events arrive does not depend on memory. Its key is KEYS[1] and, after
-- a colon, when it expires, which its event tells everybody. On a cluster a hash tag keeps the two in one slot.

local for_ms = ARGV[2]
call('SET', KEYS[1] .. ':' .. text(now + for_ms), 1, 'PX', for_ms)
return {now_text}
