#!lua flags=no-writes
-- Count the entries of some indexes of past times in each of the last steps of time, all of one length. Changes nothing.
--
-- ARGV[2]  ms of a step   ARGV[3] how many steps; the last is the current one
-- ARGV[4…] indexes, without the root: `finished:<letter>:<prefix>`, `retrying:<prefix>`
-- Answer   {now, {number, …}}: the steps of the first index, the oldest first, then those of the next

local width, steps = tonumber(ARGV[2]), tonumber(ARGV[3])
local first, counts = math.floor(now / width) - steps + 1, {}
for i = 4, #ARGV do
  for step = first, first + steps - 1 do
    counts[#counts + 1] = call('ZCOUNT', root .. ARGV[i], text(step * width), '(' .. text((step + 1) * width))
  end
end
return {text(now), counts}
