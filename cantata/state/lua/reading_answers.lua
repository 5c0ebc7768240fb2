-- Replies at one moment: the fields of a run, now (ms), and for each name, then for each terminal, {name, step that answers to it, its state}, ...
-- ARGV: run, name, ...
local R = run_key(ARGV[1])
local names = {}
for i = 2, #ARGV do names[i - 1] = ARGV[i] end
local terminals = redis.call('HGET', R, 'terminals')
for _, name in ipairs(terminals and cjson.decode(terminals) or {}) do names[#names + 1] = name end

local found = {}
for _, name in ipairs(names) do
  local step = name
  for _ = 1, 100000 do
    local moved = redis.call('HGET', R .. ':names', step)
    if not moved then break end
    step = moved
  end
  for _, value in ipairs({name, step, redis.call('HGET', R .. ':state', step) or ''}) do found[#found + 1] = value end
end
local time = redis.call('TIME')
return {redis.call('HGETALL', R), string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)), found}
