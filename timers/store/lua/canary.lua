#!lua flags=allow-oom
-- Arm a canary. Works on a full server too, because whether events arrive does not depend on memory. KEYS[1] is its key.
--
-- ARGV[2]  ms until it expires
-- Answer   {now}

call('SET', KEYS[1], 1, 'PX', ARGV[2])
return {text(now)}
