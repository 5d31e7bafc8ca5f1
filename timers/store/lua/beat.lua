#!lua flags=allow-oom
-- Take a pod's sign of life; answer who is alive and what pods have declared, if the pod doesn't know. KEYS[1] is the registry's
-- root, `timers:{pods}:`. Whenever a pod comes, changes what it is, or goes, all pods are told to come for the news.

local seen, states, cards, declared = root .. 'seen', root .. 'states', root .. 'cards', root .. 'declared'
local pod, state, forget_ms, known, card = unpack(ARGV, 2, 6)
local changed = false

local function forget(name)
  call('HDEL', states, name)
  if call('ZREM', seen, name) + call('HDEL', cards, name) > 0 then changed = true end
end

if state == 'gone' then
  forget(pod)
else
  if call('ZADD', seen, now_text, pod) == 1 then changed = true end
  if state ~= '' then call('HSET', states, pod, state) end
end
if card ~= '' then
  if call('HGET', cards, pod) ~= card then
    call('HSET', cards, pod, card)
    changed = true
  end
  for i = 7, #ARGV do
    if call('HSET', declared, ARGV[i], now_text .. ' ' .. pod) == 1 then changed = true end
  end
end
for _, silent in ipairs(call('ZRANGEBYSCORE', seen, '-inf', '(' .. text(now - forget_ms))) do forget(silent) end
-- A sign from the future: the clock went back, or another program wrote it. A live pod will give another.
if card ~= '' then
  for _, odd in ipairs(call('ZRANGEBYSCORE', seen, '(' .. text(now + forget_ms), '+inf')) do forget(odd) end
end

local version = call('GET', root .. 'version')
if changed or not version then
  version = text(now_us)
  call('SET', root .. 'version', version)
  publish(ARGV[1], tag .. ' changed')
end
if version == known then return {now_text, version, {}, {}, {}} end
return {now_text, version, call('ZRANGE', seen, '0', '-1', 'WITHSCORES'), call('HGETALL', cards), call('HGETALL', declared)}
