-- Replies at one moment: the fields of a run, now (ms), and for each name, then for each terminal, {name, step that answers to it, its state}, ...
-- ARGV: run, name, ...
use(ARGV[1])
local found = {}
local function add(name)
  local step = answering(name)
  for _, value in ipairs({name, step, redis.call('HGET', R .. ':state', step) or ''}) do found[#found + 1] = value end
end
for i = 2, #ARGV do add(ARGV[i]) end
for _, name in ipairs(cjson.decode(meta('terminals') or '[]')) do add(name) end
return {redis.call('HGETALL', R), string.format('%d', now), found}
