-- Starts the runs of times of a schedule that have come, and moves it to its next time. ARGV: schedule, the rest (JSON):
-- {mark, read: the next time that the caller read; without it the schedule stays at its time, next_at: the next time or "", look_at, retry_at?: when to look
-- again, missed, skipped, error?: why none is started, overlap, resend_ms?: in place of the offer's, items: [{at, run, request, labels, pending?: the entry that it is}, ...]}. Times are texts.
-- Replies {outcome, priority, outcome, priority, ...} of the items, and now (ms): new, accepted (its run waits for its turn in the session), known (this
-- time has its run already), queued, skipped, waiting or gone; nothing if the schedule was changed meanwhile.
local MAX_WAITING = 1000 -- times that wait for the end of a run
local LAST_RUNS = 20 -- that are named
local CHECK_MS = 60000 -- until a schedule without a next time is looked at again, while times wait
local FULL_MS = 5000 -- until a schedule is looked at again whose times wait since the queue of its session is full
local scope, given = ARGV[1], cjson.decode(ARGV[2])
local key = schedule_key(scope)
local pending, runs = key .. ':pending', key .. ':runs'
local known = redis.call('HMGET', key, 'mark', 'next', 'offer', 'definitions', 'paused')
if known[1] ~= given.mark or (given.read and (known[2] ~= given.read or known[5])) then return {} end
local offer, definitions_of_runs = cjson.decode(known[3]), known[4]
local pending_bytes = 0 -- that this call adds
local times = {missed = given.missed, skipped = given.skipped, fired = 0}

-- Whether as many turns wait in the session as may.
local function is_full()
  local name = offer.fields.session
  return name and redis.call('LLEN', session_key(name) .. ':queue') > offer.max_waiting
end

local function start(item)
  local fields = offer.fields
  offer.resend_ms = given.resend_ms or offer.resend_ms
  fields.request, fields.labels, fields.definitions, fields.schedule = item.request, item.labels, definitions_of_runs, scope
  use(item.run)
  if status then return {'known', 0} end
  local result = accept(item.run, offer)
  if result[1] == 'queued' then result[1] = 'accepted' end
  if result[1] == 'new' or result[1] == 'accepted' then
    times.fired = times.fired + 1
    redis.call('LPUSH', runs, item.run .. '|' .. item.at)
    redis.call('LTRIM', runs, 0, LAST_RUNS - 1)
  end
  return result
end

local function fire(item)
  local open, full = given.overlap ~= 'allow' and open_run_of(key), is_full()
  if item.pending then
    if redis.call('LINDEX', pending, 0) ~= item.pending then return {'gone', 0} end
    if open or full then return {'waiting', 0} end
    redis.call('LPOP', pending)
    pending_bytes = pending_bytes - #item.pending
    return start(item)
  end
  if given.overlap == 'queue' and (open or full or redis.call('EXISTS', pending) == 1) and redis.call('LLEN', pending) < MAX_WAITING then
    local entry = cjson.encode({at = item.at})
    redis.call('RPUSH', pending, entry)
    pending_bytes = pending_bytes + #entry
    if not given.read and not known[5] then redis.call('ZADD', S .. ':schedules', 'LT', now + FULL_MS, scope) end
    return {'queued', 0}
  end
  if full or (open and given.overlap ~= 'cancel_previous') then
    times.skipped = times.skipped + 1
    return {'skipped', 0}
  end
  return start(item)
end

local replies = {}
for _, item in ipairs(given.items) do
  local result = fire(item)
  replies[#replies + 1] = result[1]
  replies[#replies + 1] = result[2]
end
charge_more('schedule:' .. scope, pending_bytes)
for field, n in pairs(times) do
  if n ~= 0 then redis.call('HINCRBY', key, field, n) end
end
redis.call('HDEL', S .. ':parked', 'schedules|' .. scope) -- it could be handled
if given.error then redis.call('HSET', key, 'error', given.error) elseif times.fired > 0 then redis.call('HDEL', key, 'error') end
if given.read then
  local look_at, waits = given.look_at, redis.call('EXISTS', pending) == 1
  if given.retry_at then look_at = given.retry_at
  elseif waits and is_full() then look_at = now + FULL_MS
  elseif waits and (given.overlap == 'allow' or not open_run_of(key)) then look_at = now
  elseif waits and look_at == 'inf' then look_at = now + CHECK_MS end
  redis.call('HSET', key, 'next', given.next_at)
  if look_at == 'inf' or tonumber(look_at) > now then redis.call('HDEL', key, 'grace_ms') end
  redis.call('ZADD', S .. ':schedules', look_at, scope)
end
return {replies, now}
