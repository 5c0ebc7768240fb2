-- The prelude of every script of the limiter: the keys of the shared limits, and the choice of waiting calls that may go.
-- KEYS[1] = P, cantata:{limits}: a call touches its model, its tenant and three budgets, which others share, so all of them are in one slot, and in a
-- Redis Cluster one node keeps all limits. It can: a model call takes 0.1 to 0.2 ms of it, so there may be 5,000 a second.
-- ARGV[1] = how long the window of a rate is (ms).
--
-- Of a limit L = P:model:<name> or P:tenant:<name>:
--   L:rpm, L:tpm  hash    bucket -> calls, tokens; sum: of all buckets; head: the oldest       expires two windows after the last call
--   L:slots       set     holders that have a call under way                                   entries go with their holder
-- Of a budget, P:budget:run:<run>, P:budget:tenant:<day>:<tenant> and P:budget:day:<day>, days counted from 1970:
--   hash  tokens, nano (billionths of a dollar): what was spent; reserved_tokens, reserved_nano: what calls under way may cost
--                                                        that of a run stays as long as the run is open, others expire after two days
--   P:budgets     zset    run that has a budget -> when to look whether it is over (ms)        lives while there are any
-- Of models whose providers asked for a pause:
--   P:pauses      hash    model -> until when nobody may ask it (ms)                            expires with the last of them
--   P:pause_notes hash    model -> {since_ms, asked_s, message} (JSON): what its provider said   likewise
-- Of calls that wait, each known by its ticket (run|step):
--   P:queue:<of>  zset    ticket -> when its call was first asked for (us)                     entries go with their ticket
--                         <of>: the limits that the calls need, as a JSON list; first a budget, if calls under way have reserved it
--   P:queues      zset    <of> -> the same of the first ticket in the queue                    entries go with their queue
--   P:tickets     hash    ticket -> {call, since, queue} (JSON); no queue once it was called   entries go with their call
--   P:kept        zset    ticket that was called -> until when it keeps its position (ms)      entries go then
-- Of calls under way, and of tickets that were called, which keep their permit for a few seconds:
--   P:active      zset    holder (a lease's name, or a ticket) -> when it is given up unless renewed (ms)   entries go then
--   P:late        zset    holder given up, whose cost may still be recorded -> until when (ms)     "
--   P:permits     hash    holder -> what it took (JSON)                                        entries go with their holder
--   P:from        string  place in P:queues where the last call stopped                        until a call gets to the end of P:queues, or a minute
-- Of what could not be read:
--   P:faults      list    {item, error} (JSON): permits that were given up, and tickets whose call is asked for anew   entries go with the next sweep
-- A Redis may evict what expires: the budget of an open run does not, nor what calls under way have set aside of it. The sweep calls twice a second.
--
-- Rates hold in every window, wherever it begins: calls are counted in buckets, 60 to a window, and all of a bucket leaves when its last moment is a window
-- and a bucket ago. So a limit's worth of calls takes 62/60 of a window (96.8 % is used); a log of single calls would give 100 % but has 100,000 entries
-- where this has 60. The bucket more is a margin: a request reaches the provider later than it is counted, by up to a bucket, and one that takes longer to
-- leave is counted anew when it does (redate.lua).
--
-- A call that finds nobody waiting for its limits may go as soon as there is room, so a fan-out is not slowed down by a limit that is far away. The others
-- wait in queues, one for each set of limits, in the order in which they first asked. Nobody polls for them: the sweep and each call that ends give permits
-- to the first, a bucket's worth at a time, so that they stampede neither here nor at the provider.

local redis = {call = redis.call, pcall = redis.pcall}
local commands -- of Redis that this script has called since it counts them

local function count_commands()
  if commands then return end
  local call = redis.call
  commands = 0
  redis.call = function(...)
    commands = commands + 1
    return call(...)
  end
end

local P = KEYS[1]
local window = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local DAY = 86400000
local LASTING = 2 * DAY
local BUCKETS = 60          -- in a window
local COUNTED = BUCKETS + 1 -- how many before this one are counted
local SPEEDUP = 2              -- those that wait may go so many times faster than the limit lets them on average
local SPREAD = 10           -- or take one part in so many of what was free: a limit that is far away does not slow them down
local GRACE = 5000          -- how long a ticket that was called keeps its permit
local ABSENT = 600000       -- how late it may return and still have its position in the queue
local USUAL_CALL = 1000     -- how long a call takes (ms), to estimate when a slot is free
local LATE = 3600000        -- how long the cost of a call that was given up may still be recorded
local OVERLOOKED = LATE     -- after the last word on a run's budget until somebody looks whether the run is over, and again as long as it is not
local MAX_PAUSE = 3600000   -- a longer pause is an error of the version before, which took any number that a provider sent; it counts as none
local CHECKED_SLOTS = 5     -- of a full limit: whether their holders are still under way
local MAX_ENTRIES = 100     -- given up or called in one script, so that it stays short,
local MAX_COMMANDS = 600    -- or as many as take so many commands; the next script goes on
local RESUMED = 60000       -- for which it is known where it goes on

local width = window / BUCKETS
local bucket = math.floor(now / width)
local rates = {}  -- read by this script, by key
local closed = {} -- limit or budget -> why nobody else may have a permit of it in this script

local function key_of(terms) return P .. ':' .. terms[1] .. ':' .. terms[2] end

-- What a rate has counted within the window.
local function rate_of(key)
  if rates[key] then return rates[key] end
  local known = redis.call('HMGET', key, 'head', 'sum', bucket)
  local rate = {key = key, head = tonumber(known[1]) or bucket, sum = tonumber(known[2]) or 0, here = tonumber(known[3]) or 0}
  local oldest = bucket - COUNTED
  if math.abs(rate.head - oldest) > 2 * BUCKETS then -- all is long past, or the clock was set back by more than a window
    redis.call('DEL', key)
    rate.head, rate.sum, rate.here = bucket, 0, 0
  elseif rate.head < oldest then
    local past = {}
    for i = rate.head, oldest - 1 do past[#past + 1] = i end
    for _, n in ipairs(redis.call('HMGET', key, unpack(past))) do rate.sum = rate.sum - (n or 0) end
    redis.call('HDEL', key, unpack(past))
    rate.head = oldest
    redis.call('HSET', key, 'head', rate.head, 'sum', rate.sum)
  end
  rate.head = math.min(rate.head, bucket)
  rates[key] = rate
  return rate
end

-- Counts calls and tokens of a bucket in all rates of some limits; those of a bucket that has left the window change nothing.
local function count(limits, at_bucket, calls, tokens)
  for _, terms in ipairs(limits) do
    for _, each in ipairs({{':rpm', terms[3], calls}, {':tpm', terms[4], tokens}}) do
      local rate = each[2] ~= '' and each[3] ~= 0 and rate_of(key_of(terms) .. each[1])
      if rate and at_bucket >= rate.head then
        rate.sum = rate.sum + each[3]
        if at_bucket == bucket then rate.here = rate.here + each[3] end
        redis.call('HINCRBY', rate.key, at_bucket, each[3])
        redis.call('HSET', rate.key, 'head', rate.head, 'sum', rate.sum)
        redis.call('PEXPIRE', rate.key, math.ceil(2 * window))
      end
    end
  end
end

local function paused_until(terms)
  local ends = terms[1] == 'model' and tonumber(redis.call('HGET', P .. ':pauses', terms[2]) or now) or now
  return ends > now + MAX_PAUSE and now or ends
end

-- Whether a rate has no room for n; a call larger than the limit goes alone. Those that wait take no more of a bucket than its share.
local function is_full(key, limit, n, is_queued)
  if not limit then return false end
  local rate = rate_of(key)
  if rate.sum > 0 and rate.sum + n > limit then return true end
  return is_queued and rate.here >= math.max(math.ceil(SPEEDUP * limit / BUCKETS), math.floor((limit - rate.sum + rate.here) / SPREAD))
end

-- What a limit has no room for: pause, rpm, tpm or concurrency; nil if a call of so many tokens may go.
local function lack_of(terms, tokens, is_queued)
  local key, concurrency = key_of(terms), tonumber(terms[5])
  if paused_until(terms) > now then return 'pause' end
  if is_full(key .. ':rpm', tonumber(terms[3]), 1, is_queued) then return 'rpm' end
  if is_full(key .. ':tpm', tonumber(terms[4]), tokens, is_queued) then return 'tpm' end
  if concurrency and redis.call('SCARD', key .. ':slots') >= concurrency then
    if not is_queued then return 'concurrency' end
    for _, holder in ipairs(redis.pcall('SRANDMEMBER', key .. ':slots', CHECKED_SLOTS)) do -- one that could not be read left its slot taken
      if not redis.call('ZSCORE', P .. ':active', holder) then redis.call('SREM', key .. ':slots', holder) end
    end
    if redis.call('SCARD', key .. ':slots') >= concurrency then return 'concurrency' end
  end
end

-- The first of a call's limits that has no room for it: its terms, and what it lacks.
local function blocked_at(call, is_queued)
  for _, terms in ipairs(call.limits) do
    local lack = closed[terms[1] .. ':' .. terms[2]] or lack_of(terms, call.tokens, is_queued)
    if lack then return terms, lack end
  end
end

-- About how long (ms) a call waits for a limit, with so many before it: until the oldest bucket leaves the window, or as many as go meanwhile.
local function estimate(terms, lack, tokens, ahead)
  if lack == 'pause' then return paused_until(terms) - now end
  if lack == 'concurrency' then return math.ceil(USUAL_CALL * (ahead + 1) / tonumber(terms[5])) end
  local limit = tonumber(terms[lack == 'rpm' and 3 or 4])
  local first = (rate_of(key_of(terms) .. ':' .. lack).head + COUNTED + 1) * width - now
  return math.ceil(math.max(first, (ahead + 1) * window * math.min(1, (lack == 'rpm' and 1 or tokens) / limit)))
end

local function charge(budget, kind, tokens, nano)
  for unit, n in pairs({tokens = tokens, nano = nano}) do
    if n ~= 0 then redis.call('HINCRBY', budget[1], kind .. unit, n) end
  end
  local run = budget[2]
  if run then redis.call('ZADD', P .. ':budgets', now + OVERLOOKED, run) else redis.call('PEXPIRE', budget[1], LASTING) end
end

-- A budget: its key, and its run if it is one of a run.
local function budget_of(scope, name)
  local day = math.floor(now / DAY)
  if scope == 'run' then return {P .. ':budget:run:' .. name, name} end
  if scope == 'tenant' then return {P .. ':budget:tenant:' .. day .. ':' .. name} end
  return {P .. ':budget:day:' .. day}
end

-- The exhausted budget, as a reply; else one that is reserved by others, and its scope. Reservations may be freed, so only spending exhausts a budget.
local function spent_of(call)
  local reserved, reserved_scope
  for _, each in ipairs(call.budgets) do
    local scope, name = each[1], each[2]
    local known = redis.call('HMGET', budget_of(scope, name)[1], 'tokens', 'reserved_tokens', 'nano', 'reserved_nano')
    for at, unit in ipairs({{'tokens', each[3], call.tokens}, {'usd', each[4], call.nano}}) do
      local limit, cost = tonumber(unit[2]), unit[3]
      local spent, aside = tonumber(known[2 * at - 1]) or 0, tonumber(known[2 * at]) or 0
      if limit and (spent + cost > limit or spent >= limit) then return {'exhausted', scope, unit[1], limit, spent, cost} end
      if limit and spent + aside + cost > limit then reserved, reserved_scope = 'budget:' .. scope .. ':' .. name, scope end
    end
  end
  return nil, reserved, reserved_scope
end

-- Gives a call its permit: {tokens, nano, limits {word, name, rpm, tpm, concurrency}, the tenant's before the model's, budgets {scope, name, tokens, nano}};
-- "" for no limit. The holder keeps it for so long (ms) unless it is renewed.
local function grant(holder, call, ms, is_called)
  count(call.limits, bucket, 1, call.tokens)
  local budgets = {}
  for _, terms in ipairs(call.limits) do
    if terms[5] ~= '' then redis.call('SADD', key_of(terms) .. ':slots', holder) end
  end
  for n, each in ipairs(call.budgets) do
    budgets[n] = budget_of(each[1], each[2])
    charge(budgets[n], 'reserved_', call.tokens, call.nano)
  end
  local permit = {bucket = bucket, tokens = call.tokens, nano = call.nano, limits = call.limits, budgets = budgets, is_called = is_called}
  redis.call('HSET', P .. ':permits', holder, cjson.encode(permit))
  redis.call('ZADD', P .. ':active', now + ms, holder)
  redis.call('ZREM', P .. ':late', holder)
end

local OUTAGES = {OOM = true, MISCONF = true, READONLY = true, NOREPLICAS = true, NOPERM = true, BUSY = true, LOADING = true}
local MAX_FAULTS = 100 -- that are kept until a sweep logs them

-- Records that an item failed, with the error that `pcall` caught. One of the server, which is no fault of the item, is raised again.
local function note_fault(item, why)
  local text = type(why) == 'table' and why.err or tostring(why)
  if OUTAGES[string.match(text, '^%-?(%u+) ') or ''] then error(why, 0) end
  text = string.sub(string.gsub(string.gsub(text, '^user_script:%d+: ', ''), '[^ -~]', '?'), 1, 300)
  redis.call('RPUSH', P .. ':faults', cjson.encode({item = item, error = text}))
  redis.call('LTRIM', P .. ':faults', -MAX_FAULTS, -1)
end

-- The entry of an item in a hash; nil if there is none, and its fault is noted if it cannot be read. `parts` are the tables that it has.
local function entry_of(key, item, parts)
  local text = redis.call('HGET', P .. key, item)
  if not text then return nil end
  local is_read, entry = pcall(cjson.decode, text)
  local is_sound = is_read and type(entry) == 'table'
  for _, part in ipairs(parts) do is_sound = is_sound and type(entry[part]) == 'table' end
  if is_sound then return entry end
  note_fault(item, is_read and 'its entry in ' .. key .. ' is not of the form that is expected' or entry)
end

-- The permit of a holder, or nil. One that cannot be read is given up: it frees nothing.
local function permit_of(holder) return entry_of(':permits', holder, {'limits', 'budgets'}) end

-- Frees the slots and reservations of a call that is over or given up; replies whether there were any. A ticket that was called has sent no
-- request: its permit counts for nothing. The cost of other calls may still be recorded.
local function release(holder, permit)
  if redis.call('ZREM', P .. ':active', holder) == 0 then return false end
  for _, terms in ipairs(permit.limits) do redis.call('SREM', key_of(terms) .. ':slots', holder) end
  for _, budget in ipairs(permit.budgets) do charge(budget, 'reserved_', -permit.tokens, -permit.nano) end
  if permit.is_called then
    count(permit.limits, permit.bucket, -1, -permit.tokens)
    redis.call('HDEL', P .. ':permits', holder)
  end
  return true
end

local function waiting(ticket) return entry_of(':tickets', ticket, {'call'}) end

local function queue_of(call, budget)
  local of = {budget}
  for _, terms in ipairs(call.limits) do of[#of + 1] = terms[1] .. ':' .. terms[2] end
  return cjson.encode(of)
end

-- Has a ticket wait for its limits, or first for a budget that is reserved by others.
local function enqueue(ticket, waits, budget)
  waits.queue = queue_of(waits.call, budget)
  redis.call('ZADD', P .. ':queue:' .. waits.queue, waits.since, ticket)
  redis.call('ZADD', P .. ':queues', 'LT', waits.since, waits.queue)
  redis.call('HSET', P .. ':tickets', ticket, cjson.encode(waits))
  redis.call('ZREM', P .. ':kept', ticket)
end

local function dequeue(ticket, of)
  redis.call('ZREM', P .. ':queue:' .. of, ticket)
  local first = redis.call('ZRANGE', P .. ':queue:' .. of, 0, 0, 'WITHSCORES')
  if first[1] then redis.call('ZADD', P .. ':queues', first[2], of) else redis.call('ZREM', P .. ':queues', of) end
end

-- Forgets a ticket; it waits in no queue.
local function forget_ticket(ticket)
  redis.call('HDEL', P .. ':tickets', ticket)
  redis.call('ZREM', P .. ':kept', ticket)
end

-- Calls the first of a queue: it gets a permit, or its step runs to learn that its budget is exhausted. If it must wait, closes its limit to all behind it.
-- Replies the ticket, false if nobody of this queue may go, or nil if it went to another queue.
local function call_first(of)
  for _, name in ipairs(cjson.decode(of)) do
    if closed[name] then return false end
  end
  local ticket = redis.call('ZRANGE', P .. ':queue:' .. of, 0, 0)[1]
  local waits = waiting(ticket)
  if not waits then -- its step asks anew
    dequeue(ticket, of)
    forget_ticket(ticket)
    return ticket
  end
  local exhausted, budget = spent_of(waits.call)
  if budget then
    closed[budget] = 'budget'
    if queue_of(waits.call, budget) == of then return false end
    dequeue(ticket, of)
    return enqueue(ticket, waits, budget)
  end
  local terms, lack = blocked_at(waits.call, true)
  if terms and not exhausted then
    closed[terms[1] .. ':' .. terms[2]] = lack
    return false
  end
  dequeue(ticket, of)
  if not exhausted then grant(ticket, waits.call, GRACE, true) end
  waits.queue = nil
  redis.call('HSET', P .. ':tickets', ticket, cjson.encode(waits))
  redis.call('ZADD', P .. ':kept', now + ABSENT, ticket)
  return ticket
end

-- Removes the first of a queue whose call cannot be decided about, or the queue if it has none; replies its ticket: its step asks anew.
local function give_up_first(of, why)
  local is_read, first = pcall(redis.call, 'ZRANGE', P .. ':queue:' .. of, 0, 0)
  local ticket = is_read and first[1] or nil
  note_fault(ticket or of, why)
  if ticket then
    dequeue(ticket, of)
    forget_ticket(ticket)
  else
    redis.call('DEL', P .. ':queue:' .. of)
    redis.call('ZREM', P .. ':queues', of)
  end
  return ticket
end

-- Calls those that wait, in the order in which they first asked, as far as there is room; replies their tickets. A queue that may not go now may not
-- later in this script, so each is looked at once for each ticket that leaves it, and once more. With many queues, later scripts look at the others.
local function advance()
  local called, moved = {}, 0
  if redis.call('EXISTS', P .. ':queues') == 0 then return called end
  count_commands()
  local resumed, last = redis.call('GET', P .. ':from'), commands + MAX_COMMANDS
  local from = resumed or '-inf'
  while #called + moved < MAX_ENTRIES do
    if commands >= last then
      redis.call('SET', P .. ':from', from, 'PX', RESUMED)
      return called
    end
    local of, since = unpack(redis.call('ZRANGEBYSCORE', P .. ':queues', from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    if not of then break end
    local is_done, ticket = pcall(call_first, of)
    if not is_done then ticket = give_up_first(of, ticket) end
    if ticket then called[#called + 1] = ticket elseif ticket == nil then moved = moved + 1 end
    from = (ticket == false and '(' or '') .. since
  end
  if resumed then redis.call('DEL', P .. ':from') end
  return called
end

-- Gives up calls whose holders did not renew and tickets that were called and did not come, and forgets those whose cost was never recorded or that did not return.
local function expire_permits()
  local function past(part) return redis.call('ZRANGEBYSCORE', P .. part, '-inf', now, 'LIMIT', 0, MAX_ENTRIES) end
  local gone = past(':active')
  if #gone > 0 then count_commands() end
  local last = (commands or 0) + MAX_COMMANDS
  for _, holder in ipairs(gone) do
    if commands >= last then break end
    local permit = permit_of(holder)
    local is_done, why = pcall(function()
      if permit then release(holder, permit) end
      if permit and not permit.is_called then redis.call('ZADD', P .. ':late', now + LATE, holder) end
    end)
    if not is_done then note_fault(holder, why) end
    if not (permit and is_done) then
      redis.call('ZREM', P .. ':active', holder)
      redis.call('HDEL', P .. ':permits', holder)
    end
  end
  for _, holder in ipairs(past(':late')) do
    redis.call('ZREM', P .. ':late', holder)
    redis.call('HDEL', P .. ':permits', holder)
  end
  for _, ticket in ipairs(past(':kept')) do forget_ticket(ticket) end
end
