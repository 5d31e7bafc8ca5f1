#!lua flags=allow-oom
-- Arm a canary, on a full server too: whether events arrive has nothing to do with memory. KEYS[1] is its key.
--
-- ARGV[2]  ms until it expires
-- Answer   {now}

redis.call('SET', KEYS[1], 1, 'PX', ARGV[2])
return {text(now)}
