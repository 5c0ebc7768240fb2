-- Grants a permit for a model call, or replies how long it will wait, or that its budget is exhausted. Repeated for the same holder it takes nothing more.
-- ARGV: window, lease_ms, holder, ticket (run|step), the call (JSON, as `grant` in lib.lua says)
-- Replies {'granted'}, or {'wait', about how many ms, for what, of whom, calls ahead}, or {'exhausted', scope, unit, limit, spent, what it may cost}.
local lease_ms, holder, ticket = tonumber(ARGV[2]), ARGV[3], ARGV[4]

expire_permits()
if redis.call('ZSCORE', P .. ':active', holder) then return {'granted'} end

local call, waits, permit = cjson.decode(ARGV[5]), waiting(ticket), permit_of(ticket)
if waits and waits.queue then dequeue(ticket, waits.queue) end
if permit then release(ticket, permit) end
local exhausted, budget, scope = spent_of(call)
if exhausted then
  forget_ticket(ticket)
  return exhausted
end
local since = waits and waits.since or string.format('%.0f', time[1] * 1000000 + time[2])
local ahead = redis.call('ZCOUNT', P .. ':queue:' .. queue_of(call, budget), '-inf', '(' .. since)
local terms, lack = blocked_at(call)
if not budget and not lack and (permit or ahead == 0) then
  grant(holder, call, lease_ms)
  if waits then forget_ticket(ticket) end
  return {'granted'}
end
enqueue(ticket, {call = call, since = since}, budget)
if budget then return {'wait', USUAL_CALL * (ahead + 1), 'budget', scope, ahead} end
if not terms then -- there is room just now, and those before it are about to be called
  terms = call.limits[#call.limits]
  lack = terms[3] ~= '' and 'rpm' or terms[4] ~= '' and 'tpm' or terms[5] ~= '' and 'concurrency' or 'pause'
end
return {'wait', math.max(1, estimate(terms, lack, call.tokens, ahead)), lack, terms[1], ahead}
