-- Lets a model call go, or says how long it will wait, or that its budget is exhausted. Told twice for the same holder it takes nothing more.
-- ARGV: window, lease_ms, holder, ticket (run|step), the call (JSON, as `waiting` in limits_lib.lua says)
-- Replies {'granted'}, or {'wait', ms, for what, of whom, calls ahead}, or {'exhausted', scope, unit, limit, spent, what it may cost}.
local lease_ms, holder, ticket = tonumber(ARGV[2]), ARGV[3], ARGV[4]

give_up_dead()
if redis.call('ZSCORE', P .. ':held', holder) then return {'granted'} end

local call, waited = cjson.decode(ARGV[5]), waiting(ticket)
local answer, limits, places = look(ticket, {call = call, since = waited and waited.since or now, marks = waited and waited.marks or {}})
if answer then return answer end

for n, limit in ipairs(limits) do
  if places[n].in_line then leave(limit, ticket) end
  if limit.rpm then count(limit.rpm, bucket, 1) end
  if limit.tpm then count(limit.tpm, bucket, call.tokens) end
  if limit.concurrency then
    redis.call('SADD', limit.key .. ':slots', holder)
  end
end
if waited then drop(ticket) end
local budgets = {}
for _, each in ipairs(call.budgets) do
  local budget = budget_of(each[1], each[2])
  book(budget, 'held_', call.tokens, call.nano)
  budgets[#budgets + 1] = budget
end
local hold = {at = now, bucket = bucket, tokens = call.tokens, nano = call.nano, limits = call.limits, budgets = budgets}
redis.call('HSET', P .. ':holds', holder, cjson.encode(hold))
redis.call('ZADD', P .. ':held', now + lease_ms, holder)
redis.call('ZREM', P .. ':late', holder)
return {'granted'}
