-- Leases a step to a worker if the ledger says so.
-- ARGV: run, step, owner, lease_ms, 1 if the call is told again because its reply was lost
-- Replies {'begun', {step, attempt, spec, given, failures, {name, output, ...}}} or {reason}: gone, closed, over, early, leased.
use(ARGV[1])
if not status then return {'gone'} end
if status == 'accepted' then redis.call('HSET', R, 'status', 'running', 'started_at', now); status = 'running'
elseif status ~= 'running' then return {'closed'} end
local s = get(ARGV[2])
if not s then return {'gone'} end
if OVER[s.word] then return {'over'} end
if s.word == 'running' and (ARGV[5] ~= '1' or s.owner ~= ARGV[3]) then return {'leased'} end
if s.word == 'running' then forget(s); s.word, s.attempt = 'sent', s.attempt - 1 end
if s.word ~= 'sent' and s.word ~= 'ready' then return {'early'} end
local text, _, spec = spec_of(s.id)
return {'begun', lease(s, text, spec, ARGV[3], tonumber(ARGV[4]))}
