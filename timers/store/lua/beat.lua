#!lua flags=allow-oom
-- Take a pod's sign of life; answer who else is alive, and what pods have declared. KEYS[1] is the registry's root,
-- `timers:{pods}:`.
--
-- ARGV[2]  pod
-- ARGV[3]  how it is (JSON), or '' if it leaves
-- ARGV[4]  ms after which a silent pod is forgotten
-- ARGV[5]  version of the roster that the pod knows, or ''
-- ARGV[6]  what it is (JSON), or '' if it has said so before
-- ARGV[7…] the prefixes that it declares; without ARGV[6] one of them, to see whether the declarations are still there
-- Answer   {now, version, {pod, ms of its last sign, how it is, …}, {pod, what it is, …}, {prefix, `<ms> <pod>`, …}}: the last two,
--          what the live pods are and every declaration, are empty if the pod knows this version

local seen, states, cards, declared = root .. 'seen', root .. 'states', root .. 'cards', root .. 'declared'
local pod, state, forget_ms, known, card = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local changed = false

local function forget(name)
  call('ZREM', seen, name)
  call('HDEL', states, name)
  if call('HDEL', cards, name) == 1 then changed = true end
end

if state == '' then
  forget(pod)
else
  call('ZADD', seen, text(now), pod)
  call('HSET', states, pod, state)
end
if card ~= '' then
  call('HSET', cards, pod, card)
  for i = 7, #ARGV do call('HSET', declared, ARGV[i], text(now) .. ' ' .. pod) end
  changed = true
elseif state ~= '' and (call('HEXISTS', cards, pod) == 0 or ARGV[7] and call('HEXISTS', declared, ARGV[7]) == 0) then
  changed = true  -- what the pods had said is gone: a new version makes each of them say it again
end
for _, silent in ipairs(call('ZRANGEBYSCORE', seen, '-inf', '(' .. text(now - forget_ms))) do forget(silent) end
-- A sign from the future: the clock went back, or a stranger wrote it. A live pod will give another.
for _, odd in ipairs(call('ZRANGEBYSCORE', seen, '(' .. text(now + forget_ms), '+inf')) do forget(odd) end

local version = call('GET', root .. 'version')
if changed or not version then
  version = text(time[1] * 1000000 + time[2])
  call('SET', root .. 'version', version)
end
local signs = call('ZRANGE', seen, 0, -1, 'WITHSCORES')
local answer = {}
for i = 1, #signs, 2 do
  answer[#answer + 1] = signs[i]
  answer[#answer + 1] = signs[i + 1]
  answer[#answer + 1] = call('HGET', states, signs[i]) or '{}'
end
if version == known then return {text(now), version, answer, {}, {}} end
return {text(now), version, answer, call('HGETALL', cards), call('HGETALL', declared)}
