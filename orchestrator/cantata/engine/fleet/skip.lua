-- Skips time in a test stack: moves timers and expiries forward, as if time had passed. No other script or key knows of it, but schedules,
-- whose times are dates: they count what was skipped. For a Redis of one node.
-- KEYS[1] = the namespace. ARGV: ms. Replies now (ms): entries that are due by then are to be handled.
--
-- Timers, deadlines, pauses of models and expiries are moved. Leases, permits, counts of limits, sent messages, stages of forks, replies of writes and the
-- lock of the sweep are not, so no step is taken from a worker that executes it.
local prefix, ms = KEYS[1] .. ':', tonumber(ARGV[1])
local time = redis.call('TIME')

local function expiry(key)
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, left - ms) end -- not above 0: it goes now
end

local function scores(key)
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ms, member) end
end

local function pauses(key)
  for _, model in ipairs(redis.call('HKEYS', key)) do redis.call('HINCRBY', key, model, -ms) end
  expiry(key)
end

local function field(name)
  return function(key)
    if redis.call('HEXISTS', key, name) == 1 then redis.call('HINCRBY', key, name, -ms) end
    expiry(key)
  end
end

local function memory(key)
  if redis.call('TYPE', key).ok == 'zset' then scores(key) end
  expiry(key)
end

-- The first rule that matches a key applies; other keys stay as they are.
local RULES = {
  {'^{%d+}:due$', scores},
  {'^{%d+}:finished$', scores},
  {'^{%d+}:item_ends$', scores},
  {'^{%d+}:schedules$', scores},
  {'^{%d+}:schedule:[^:]*$', function(key)
    for _, name in ipairs({'skipped_ms', 'grace_ms'}) do redis.call('HINCRBY', key, name, ms) end
  end},
  {'^{%d+}:run:[^:]*$', field('deadline_at')},
  {'^{%d+}:run:[^:]*:[^:]*$', expiry},
  {'^{%d+}:definitions:', field('until')},
  {'^{%d+}:session:', expiry},
  {'^{%d+}:builder:', expiry},
  {'^{memory:[^}]*}:replies:', function() end},
  {'^{memory:', memory},
  {'^{cache}:', expiry},
  {'^{limits}:pauses$', pauses},
  {'^dead_letters$', expiry},
}

local function bring_nearer(key)
  for _, rule in ipairs(RULES) do
    if string.find(key, rule[1], #prefix + 1) then return rule[2](key) end
  end
end

local keys, cursor = {}, '0'
repeat
  local found
  cursor, found = unpack(redis.call('SCAN', cursor, 'COUNT', 1000))
  for _, key in ipairs(found) do
    if string.sub(key, 1, #prefix) == prefix then keys[key] = true end -- one may be found twice
  end
until cursor == '0'
for key in pairs(keys) do bring_nearer(key) end
return time[1] * 1000 + math.floor(time[2] / 1000)
