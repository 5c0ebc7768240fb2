-- Lets a model call go, or says when to ask again, or that its budget is exhausted. Told twice for the same holder it takes nothing more.
-- ARGV: window, lease_ms, holder, ticket (run|step), tokens, nano or "" if the price is unknown, ms to keep the run's budget, how many limits,
--       then for each {word, name, rpm, tpm, concurrency}, the tenant's before the model's, then for each budget {scope, name, tokens, nano}; "" for no limit
-- Replies {'granted'}, or {'wait', ms, for what, of whom, calls ahead}, or {'exhausted', scope, unit, limit, spent, what it may cost}.
local lease_ms, holder, ticket, tokens, nano = tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]) or 0
local NEXT_BUDGET_LOOK = 1000 -- ms
local GOLDEN = 0.618034 -- its multiples, without their whole part, are spread evenly

give_up_dead()
if redis.call('ZSCORE', P .. ':held', holder) then return {'granted'} end

local limits, budgets, terms = {}, {}, {}
local i = 9
for _ = 1, tonumber(ARGV[8]) do
  terms[#terms + 1] = {unpack(ARGV, i, i + 4)}
  limits[#limits + 1] = limit_of(unpack(ARGV, i, i + 4))
  i = i + 5
end

local function budget_of(scope, name)
  local day = math.floor(now / DAY)
  if scope == 'run' then return {P .. ':budget:run:' .. name, math.max(tonumber(ARGV[7]), DAY)} end
  if scope == 'tenant' then return {P .. ':budget:tenant:' .. day .. ':' .. name, LASTING} end
  return {P .. ':budget:day:' .. day, LASTING}
end

-- What others have set aside may come back: only what was spent exhausts a budget.
local spoken_for
while ARGV[i] do
  local scope, name = ARGV[i], ARGV[i + 1]
  local budget = budget_of(scope, name)
  local known = redis.call('HMGET', budget[1], 'tokens', 'held_tokens', 'nano', 'held_nano')
  for at, unit in ipairs({{'tokens', ARGV[i + 2], tokens}, {'usd', ARGV[i + 3], nano}}) do
    local limit, cost = tonumber(unit[2]), unit[3]
    local spent, held = tonumber(known[2 * at - 1]) or 0, tonumber(known[2 * at]) or 0
    if limit and (spent + cost > limit or spent >= limit) then
      for _, each in ipairs(limits) do leave(each, ticket) end
      return {'exhausted', scope, unit[1], limit, spent, cost}
    end
    if limit and spent + held + cost > limit then spoken_for = scope end
  end
  budgets[#budgets + 1] = budget
  i = i + 4
end
if spoken_for then
  for _, each in ipairs(limits) do leave(each, ticket) end
  return {'wait', NEXT_BUDGET_LOOK, 'budget', spoken_for, 0}
end

-- One that must wait waits at its first limit that has no room, keeps its place at those before, and has none at those behind: what waits for its
-- tenant's limit is not in the way of other tenants. It comes back within two windows however long the line, so that the line knows who is still
-- there; those who come back in between are spread over a window.
local places = {}
for n, limit in ipairs(limits) do
  places[n] = place_of(limit, ticket)
  local at, why = turn_of(limit, places[n], tokens)
  if at > now then
    local wait = math.ceil(at - now)
    if wait > 2 * window then wait = math.ceil(window * (1 + places[n].calls * GOLDEN % 1)) end
    for m, other in ipairs(limits) do
      if m > n then
        leave(other, ticket)
      else
        redis.call('ZADD', other.key .. ':line', places[m].mark, ticket)
        redis.call('PEXPIRE', other.key .. ':line', math.ceil(3 * window + GRACE))
        ask(other, ticket, tokens, now + wait + GRACE, m < n and 'elsewhere' or 'here')
      end
    end
    return {'wait', wait, why, limit.word, places[n].calls}
  end
end

for n, limit in ipairs(limits) do
  if places[n].in_line then leave(limit, ticket) end
  if limit.rpm then count(limit.rpm, bucket, 1) end
  if limit.tpm then count(limit.tpm, bucket, tokens) end
  if limit.concurrency then
    redis.call('SADD', limit.key .. ':slots', holder)
    redis.call('PEXPIRE', limit.key .. ':slots', LASTING)
  end
end
for _, budget in ipairs(budgets) do book(budget, 'held_', tokens, nano) end
local hold = {at = now, bucket = bucket, tokens = tokens, nano = nano, limits = terms, budgets = budgets}
redis.call('HSET', P .. ':holds', holder, cjson.encode(hold))
redis.call('ZADD', P .. ':held', now + lease_ms, holder)
redis.call('ZREM', P .. ':late', holder)
last_long(':holds', ':held')
return {'granted'}
