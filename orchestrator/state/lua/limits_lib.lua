-- Put before every script of the limiter: how shared limits lie in Redis, and when it is whose turn.
-- KEYS[1] = P, cantata:{limits}: a call touches its model, its tenant and three budgets, which others share, so all of them are in one slot, and in a
-- Redis Cluster one node keeps all limits. It can: a model call takes 0.1 to 0.2 ms of it, so there may be 5,000 a second.
-- ARGV[1] = how long the window of a rate is (ms).
--
-- Of a limit L = P:model:<name> or P:tenant:<name>:
--   L:rpm, L:tpm  hash    bucket -> calls, tokens; sum: of all buckets; head: the oldest       expires two windows after the last call
--   L:slots       set     holders that have a call under way                                   entries go with their holder
--   L:line        zset    ticket (run|step) -> its mark: tokens that were asked for before it  expires three windows after the last wait
--   L:asks        hash    ticket -> tokens, when it must be back (ms), how it waits            expires with the line
--   L:mark        string  the mark of the next in an empty line                                expires after two days
--   L:hold        string  how long a call takes (ms), a running mean                           expires after two days
--   L:pause       string  until when nobody may ask this model (ms)                            expires then
-- Of a budget, P:budget:run:<run>, P:budget:tenant:<day>:<tenant> and P:budget:day:<day>, days counted from 1970:
--   hash  tokens, nano (billionths of a dollar): what was spent; held_tokens, held_nano: what calls under way may cost
--                                                        that of a run stays as long as the run is open, others expire after two days
--   P:budgets     zset    run that has a budget -> when to look whether it is over (ms)        lives while there are any
-- Of calls that wait:
--   P:tickets     hash    ticket -> what it asked for, since when, and its marks (JSON)        entries go with their ticket
--   P:kept        zset    ticket -> until when it is kept, though it does not come (ms)        entries go then, with the next call
-- Of calls under way:
--   P:held        zset    holder (a lease's name) -> when it is given up unless renewed (ms)   entries go then, with the next call
--   P:late        zset    holder given up, whose cost may still be told -> until when (ms)     "
--   P:holds       hash    holder -> what it took (JSON)                                        entries go with their holder
-- A Redis may evict what expires: the budget of an open run does not, nor what calls under way have set aside of it. The sweep calls twice a second.
--
-- Rates hold in every window, wherever it begins: calls are counted in buckets, 60 to a window, and all of a bucket leaves when its last moment is a window
-- and a bucket ago. So a limit's worth of calls takes 62/60 of a window (96.8 % is used); a log of single calls would give 100 % but has 100,000 entries
-- where this has 60. The bucket more is a margin: a request reaches the provider later than it is counted, by up to a bucket, and one that takes longer to
-- leave is counted anew when it does (limits_redate). A call that finds nobody waiting may go as soon as there is room, so a fan-out is not slowed down by
-- a limit that is far away. Those that wait keep their order and come a bucket's worth at a time, so that they stampede neither here nor at the provider.
-- They do not come to look: the sweep asks for all of them whose turn it may be, in one call (limits_poll).

local P = KEYS[1]
local window = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local DAY = 86400000
local LASTING = 2 * DAY
local BUCKETS = 60         -- in a window
local COUNTED = BUCKETS + 1 -- how many before this one are counted
local PACE = 2             -- those that wait may come so many times faster than the limit lets them on average
local SPREAD = 10          -- or take one part in so many of what was free: a limit that is far away does not slow them down
local GRACE = 5000         -- how late one that waits may come back and still have room kept for it; also how long a free slot may go unseen
local ABSENT = 600000      -- how late it may come back and still be as far to the front as it was
local SHORTEST_POLL = 250  -- ms between two looks for a slot; timers ring twice a second
local USUAL_HOLD = 1000    -- how long a call takes (ms) while none has ended
local BUDGET_LOOK = 1000   -- ms until a budget that others have set aside is looked at again
local LONGEST_BUDGET_LOOK = 30000
local GOLDEN = 0.618034    -- its multiples, without their whole part, are spread evenly
local LATE = 3600000       -- how long the cost of a call that was given up may still be told
local OVERLOOKED = LATE    -- after the last word on a run's budget until somebody looks whether the run is over, and again as long as it is not
local MOST_HASTENED = 8     -- who are told in one call that their turn comes sooner
local SOON = 500           -- what must be gained (ms) to be worth a word, but for those who may go at once: timers ring twice a second
local MOST = 100           -- entries mended in one call, so that it stays short

local width = window / BUCKETS
local bucket = math.floor(now / width)

-- What a rate has counted within the window.
local function rate_of(key, limit)
  local known = redis.call('HMGET', key, 'head', 'sum', bucket)
  local rate = {key = key, limit = limit, pace = math.ceil(PACE * limit / BUCKETS),
                head = tonumber(known[1]) or bucket, sum = tonumber(known[2]) or 0, here = tonumber(known[3]) or 0}
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
  return rate
end

local function count(rate, at_bucket, n)
  rate.sum = rate.sum + n
  redis.call('HINCRBY', rate.key, at_bucket, n)
  redis.call('HSET', rate.key, 'head', rate.head, 'sum', rate.sum)
  redis.call('PEXPIRE', rate.key, math.ceil(2 * window))
end

-- When so much of what was counted has left the window.
local function frees_at(rate, n)
  if n <= 0 then return now end
  if not rate.counts then
    local all = {}
    for i = rate.head, rate.head + 2 * BUCKETS do all[#all + 1] = i end
    rate.counts = redis.call('HMGET', rate.key, unpack(all))
  end
  local last = 0
  for i, each in ipairs(rate.counts) do
    if each then n, last = n - each, i end
    if n <= 0 then break end
  end
  return math.max(now + 1, math.ceil((rate.head + last + COUNTED) * width))
end

-- When a call of weight n may go that has so much ahead of it in the line: those ahead fill what is free, then what leaves the window, then, window
-- after window, the room they made themselves. In a line a bucket takes no more calls when it has its share. A call larger than the limit goes alone.
local function turn_in(rate, ahead, n, place, not_before)
  n = math.min(n, rate.limit)
  local room = rate.limit - rate.sum
  local rounds = math.floor((ahead + n - 1) / rate.limit)
  local at = frees_at(rate, ahead + n - rounds * rate.limit - room) + rounds * (window + 2 * width)
  if not place.in_line then return at end
  local first = math.max(frees_at(rate, n - room), not_before)
  local start, here, pace = math.floor(first / width), 0, rate.pace
  if first <= now then
    pace = math.max(pace, math.floor((room + rate.here) / SPREAD))
    if place.returns and at <= now and rate.here < pace then return now end
    start, here = bucket, math.min(rate.here, pace)
  end
  local later = math.min(math.floor((here + ahead) / pace), place.calls + (here == pace and 1 or 0))
  return math.max(at, first, later > 0 and math.max(now + 1, math.ceil((start + later) * width)) or now)
end

local function limit_of(word, name, rpm, tpm, concurrency)
  local key = P .. ':' .. word .. ':' .. name
  rpm, tpm, concurrency = tonumber(rpm), tonumber(tpm), tonumber(concurrency)
  local limit = {word = word, key = key, concurrency = concurrency}
  limit.rpm = rpm and rate_of(key .. ':rpm', rpm)
  limit.tpm = tpm and rate_of(key .. ':tpm', tpm)
  limit.free = concurrency and concurrency - redis.call('SCARD', key .. ':slots')
  limit.paused_until = word == 'model' and tonumber(redis.call('GET', key .. ':pause') or now) or now
  return limit
end

-- When a call may go that has this place in a limit's line, and what it waits for; now or earlier if nothing.
local function turn_of(limit, place, tokens)
  local at, why = limit.paused_until, 'pause'
  local function not_before(turn, word) if turn > at then at, why = turn, word end end
  if limit.rpm then not_before(turn_in(limit.rpm, place.calls, 1, place, limit.paused_until), 'rpm') end
  if limit.tpm then not_before(turn_in(limit.tpm, place.tokens, tokens, place, limit.paused_until), 'tpm') end
  if limit.free and limit.free <= place.calls then
    local hold = math.min(tonumber(redis.call('GET', limit.key .. ':hold')) or USUAL_HOLD, GRACE)
    not_before(now + math.max(SHORTEST_POLL, math.ceil((place.calls + 1 - limit.free) * hold / limit.concurrency)), 'concurrency')
    if limit.free > 0 then not_before(place.first_due, 'concurrency') end -- what is free is kept for those ahead
  end
  return at, why
end

-- What a ticket in the line asked for: tokens, when it must be back, and how it waits: here, elsewhere (for another limit), called (to come at once).
local function asked(limit, ticket)
  local text = redis.call('HGET', limit.key .. ':asks', ticket)
  if not text then return 1, 0, 'here' end
  local tokens, back_by, how = string.match(text, '^(%d+) (%d+) (%a+)$')
  return tonumber(tokens), tonumber(back_by), how
end

local function ask(limit, ticket, tokens, back_by, how)
  redis.call('HSET', limit.key .. ':asks', ticket, string.format('%d %d %s', tokens, back_by, how))
  redis.call('PEXPIRE', limit.key .. ':asks', math.ceil(3 * window + GRACE))
end

local function leave(limit, ticket)
  if redis.call('ZREM', limit.key .. ':line', ticket) == 1 then redis.call('HDEL', limit.key .. ':asks', ticket) end
end

-- The mark of the first in the line who may still come, and when he was told to; for those before him, who did not come back, no room is kept.
local function front_of(limit, ticket)
  for _ = 1, MOST do
    local first = redis.call('ZRANGE', limit.key .. ':line', 0, 0, 'WITHSCORES')
    if not first[1] then return nil end
    local _, back_by = asked(limit, first[1])
    if back_by >= now or first[1] == ticket then return tonumber(first[2]), back_by - GRACE end
    leave(limit, first[1])
  end
  return tonumber(redis.call('ZRANGE', limit.key .. ':line', 0, 0, 'WITHSCORES')[2]), now
end

-- The place in the line that a ticket has, had, or would get: its mark, and how many calls and tokens are ahead.
local function place_of(limit, ticket, marks)
  local line = limit.key .. ':line'
  local front, first_due = front_of(limit, ticket)
  local mark, calls = tonumber(redis.call('ZSCORE', line, ticket)), redis.call('ZRANK', line, ticket)
  local returns = mark ~= nil
  if not returns then
    mark = marks[limit.key]
    if not front then return {mark = mark or tonumber(redis.call('GET', limit.key .. ':mark')) or 0, calls = 0, tokens = 0} end
    if mark then
      calls = redis.call('ZCOUNT', line, '-inf', string.format('(%.0f', mark))
    else
      local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
      mark, calls = last[2] + asked(limit, last[1]), redis.call('ZCARD', line)
    end
  end
  return {mark = mark, calls = calls, tokens = math.max(0, mark - front), first_due = first_due, in_line = true, returns = returns}
end

local function line_up(limit, ticket, place, tokens, back_by, how)
  redis.call('ZADD', limit.key .. ':line', place.mark, ticket)
  redis.call('PEXPIRE', limit.key .. ':line', math.ceil(3 * window + GRACE))
  redis.call('SET', limit.key .. ':mark', string.format('%.0f', math.max(place.mark + tokens, tonumber(redis.call('GET', limit.key .. ':mark')) or 0)),
    'PX', LASTING)
  ask(limit, ticket, tokens, back_by, how)
end

local function add(budget, field, n)
  if n ~= 0 then redis.call('HINCRBY', budget[1], field, n) end
end

local function book(budget, kind, tokens, nano)
  add(budget, kind .. 'tokens', tokens)
  add(budget, kind .. 'nano', nano)
  local run = budget[2]
  if run then redis.call('ZADD', P .. ':budgets', now + OVERLOOKED, run) else redis.call('PEXPIRE', budget[1], LASTING) end
end

-- Frees the slots of a call that is over or given up, and what was set aside for it.
local function give_back(holder, hold)
  for _, limit in ipairs(hold.limits) do redis.call('SREM', P .. ':' .. limit[1] .. ':' .. limit[2] .. ':slots', holder) end
  for _, budget in ipairs(hold.budgets) do book(budget, 'held_', -hold.tokens, -hold.nano) end
end

-- Forgets that a ticket waits.
local function drop(ticket)
  redis.call('HDEL', P .. ':tickets', ticket)
  redis.call('ZREM', P .. ':kept', ticket)
end

-- Gives up calls whose holders did not renew, and forgets those whose cost was never told, and those that waited and did not come back.
local function give_up_dead()
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', P .. ':held', '-inf', now, 'LIMIT', 0, MOST)) do
    local text = redis.call('HGET', P .. ':holds', holder)
    if text then give_back(holder, cjson.decode(text)) end
    redis.call('ZREM', P .. ':held', holder)
    redis.call('ZADD', P .. ':late', now + LATE, holder)
  end
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', P .. ':late', '-inf', now, 'LIMIT', 0, MOST)) do
    redis.call('ZREM', P .. ':late', holder)
    redis.call('HDEL', P .. ':holds', holder)
  end
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', P .. ':kept', '-inf', now, 'LIMIT', 0, MOST)) do drop(ticket) end
end

-- Calls at the front of a line whose turn comes sooner than they were told. When a slot will be free nobody knows.
local function hasten(limit, sooner)
  if not front_of(limit) then return end
  local line = redis.call('ZRANGE', limit.key .. ':line', 0, MOST_HASTENED - 1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local asks, back_by, how = asked(limit, line[i])
    local place = {calls = (i - 1) / 2, tokens = line[i + 1] - line[2], first_due = now, in_line = true}
    local at, why = turn_of(limit, place, asks)
    local wait = math.max(0, at - now)
    if wait > 0 and (why == 'concurrency' or back_by - GRACE - at < SOON) then return end
    if how == 'here' then
      ask(limit, line[i], asks, now + wait + GRACE, wait > 0 and 'here' or 'called')
      sooner[#sooner + 1] = line[i]
      sooner[#sooner + 1] = wait
    end
  end
end

-- A call that asks, or that waits: {call, since, marks}; call: {tokens, nano, limits {word, name, rpm, tpm, concurrency}, the tenant's before the
-- model's, budgets {scope, name, tokens, nano}}; "" for no limit.
local function waiting(ticket)
  local text = redis.call('HGET', P .. ':tickets', ticket)
  return text and cjson.decode(text)
end

local function wait_on(ticket, waits, until_ms)
  redis.call('HSET', P .. ':tickets', ticket, cjson.encode(waits))
  redis.call('ZADD', P .. ':kept', until_ms + ABSENT, ticket)
end

-- A budget: its key, and its run if it is one of a run.
local function budget_of(scope, name)
  local day = math.floor(now / DAY)
  if scope == 'run' then return {P .. ':budget:run:' .. name, name} end
  if scope == 'tenant' then return {P .. ':budget:tenant:' .. day .. ':' .. name} end
  return {P .. ':budget:day:' .. day}
end

-- Whose budget is exhausted, as a reply; else whose is set aside by others: that may come back, so only what was spent exhausts a budget.
local function spent_of(call)
  local spoken_for
  for _, each in ipairs(call.budgets) do
    local scope, name = each[1], each[2]
    local known = redis.call('HMGET', budget_of(scope, name)[1], 'tokens', 'held_tokens', 'nano', 'held_nano')
    for at, unit in ipairs({{'tokens', each[3], call.tokens}, {'usd', each[4], call.nano}}) do
      local limit, cost = tonumber(unit[2]), unit[3]
      local spent, held = tonumber(known[2 * at - 1]) or 0, tonumber(known[2 * at]) or 0
      if limit and (spent + cost > limit or spent >= limit) then return {'exhausted', scope, unit[1], limit, spent, cost} end
      if limit and spent + held + cost > limit then spoken_for = scope end
    end
  end
  return nil, spoken_for
end

-- Says what a call must wait for, as {'wait', ms, for what, of whom, calls ahead}, and keeps its place; or that its budget is exhausted; or nil, its limits and
-- its places in their lines: it may go.
--
-- One that must wait waits at its first limit that has no room, keeps its place at those before, and has none at those behind: what waits for its
-- tenant's limit is not in the way of other tenants. It is looked at within two windows however long the line, so that the line knows who is still
-- there; those that are looked at in between are spread over a window. A budget is looked at after half the time that was waited for it.
local function look(ticket, waits)
  local call, limits, places = waits.call, {}, {}
  for _, terms in ipairs(call.limits) do limits[#limits + 1] = limit_of(unpack(terms)) end
  local exhausted, spoken_for = spent_of(call)
  if exhausted or spoken_for then
    for _, each in ipairs(limits) do leave(each, ticket) end
    if exhausted then
      drop(ticket)
      return exhausted
    end
    local wait = math.floor(math.min(LONGEST_BUDGET_LOOK, math.max(BUDGET_LOOK, (now - waits.since) / 2)))
    waits.marks = {}
    wait_on(ticket, waits, now + wait)
    return {'wait', wait, 'budget', spoken_for, 0}
  end
  for n, limit in ipairs(limits) do
    places[n] = place_of(limit, ticket, waits.marks)
    local at, why = turn_of(limit, places[n], call.tokens)
    if at > now then
      local wait = math.ceil(at - now)
      if wait > 2 * window then wait = math.ceil(window * (1 + places[n].calls * GOLDEN % 1)) end
      for m, other in ipairs(limits) do
        if m > n then
          leave(other, ticket)
          waits.marks[other.key] = nil
        else
          line_up(other, ticket, places[m], call.tokens, now + wait + GRACE, m < n and 'elsewhere' or 'here')
          waits.marks[other.key] = places[m].mark
        end
      end
      wait_on(ticket, waits, now + wait)
      return {'wait', wait, why, limit.word, places[n].calls}
    end
  end
  return nil, limits, places
end
