-- Leases a step to a worker if the ledger says so.
-- ARGV: run, step, owner (of this call alone, so that a repetition finds its own lease), lease_ms
-- Replies {'begun', {step, attempt, spec, given, failures, {name, output, ...}, ...}} or {reason}: gone, closed, over, early, leased.
use(ARGV[1])
if not status then return {'gone'} end
if not OPEN[status] then return {'closed'} end
local s = get(ARGV[2])
if not s then return {'gone'} end
if OVER[s.state] then return {'over'} end
if s.state == 'running' then
  if s.owner ~= ARGV[3] then return {'leased'} end
  redis.call('ZADD', S .. ':leases', now + tonumber(ARGV[4]), lease_of(s))
  return {'begun', handler_inputs(s)}
end
if s.state ~= 'sent' then return {'early'} end
if status == 'accepted' then redis.call('HSET', R, 'status', 'running', 'started_at', now); status = 'running' end
return {'begun', lease(s, ARGV[3], tonumber(ARGV[4]))}
