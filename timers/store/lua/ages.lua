#!lua flags=no-writes
-- How new timers are, for whoever compares the shard with the ledger: `<creation> <version>`, empty where there is none, `-` where the
-- record cannot be read; followed by ` noted` if the ledger has yet to learn of a change.

local answer = {now_text}
for i = 2, #ARGV do
  local r, _, raw = read(ARGV[i])
  local age = r and text(r.created) .. ' ' .. text(r.version) or raw and '-' or ''
  answer[i] = age .. (call('HGET', root .. 'changed', ARGV[i]) and ' noted' or '')
end
return answer
