#!lua flags=allow-oom
-- Pause a queue or let it go on. No claim takes from a paused queue; what runs goes on.
--
-- ARGV[2]  prefix
-- ARGV[3]  `pause` or `resume`
-- Answer   {now, changed}: 0 if nothing changed

local prefix, changed = ARGV[2], nil
if ARGV[3] == 'pause' then
  changed = call('SADD', root .. 'paused', prefix)
  block(prefix, '+inf')
else
  changed = call('SREM', root .. 'paused', prefix)
  block(prefix, nil)
  earliest = now
end
conclude()
return {text(now), changed}
