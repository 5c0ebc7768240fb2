-- Takes a run in, once: the same id again changes nothing.
-- ARGV: run, step, spec, resend_ms, timeout_ms, digest of the definitions, their text or "", how long to keep them (ms), tenant, a name for this
-- call, so that it is known when it is told again, session or "", how many runs may wait in it, how long to keep it (ms), then field, value, ...
-- Replies {word, priority}; word: new, queued (behind others of its session), known, undefined (its definitions must be given too), full.
use(ARGV[1])
if status then
  return {meta('accepted_by') == ARGV[10] and 'new' or 'known', tonumber(meta('priority'))}
end
local conversation = ARGV[11] ~= '' and conversation_of(ARGV[11])
if conversation and redis.call('LLEN', conversation .. ':queue') > tonumber(ARGV[12]) then return {'full', 0} end
local shared = S .. ':definitions:' .. ARGV[6]
if ARGV[7] ~= '' then
  redis.call('SET', shared, ARGV[7], 'NX', 'PX', ARGV[8])
elseif redis.call('EXISTS', shared) == 0 then
  return {'undefined', 0}
end
redis.call('PEXPIRE', shared, ARGV[8], 'GT')

-- The more runs of its tenant are under way, the later a run has its turn. A tenant's runs lie in all shards alike, so each shard counts its own.
local open = redis.call('HINCRBY', S .. ':tenants', ARGV[9], 1)
local priority = open <= 1 and 0 or open <= 4 and 3 or open <= 16 and 6 or 9

redis.call('HSET', R, 'status', 'accepted', 'created_at', now, 'deadline_at', now + tonumber(ARGV[5]), 'definitions', ARGV[6],
  'left', 1, 'count', 1, 'tenant', ARGV[9], 'priority', priority, 'accepted_by', ARGV[10], unpack(ARGV, 14))
redis.call('HSET', R .. ':steps', ARGV[2], ARGV[3])
redis.call('ZADD', S .. ':due', now + tonumber(ARGV[5]), 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
event('accepted')
if conversation and join_queue(ARGV[11], tonumber(ARGV[13])) > 1 then
  redis.call('HSET', R .. ':state', ARGV[2], 'waiting 0 0 1 0 0 0 -')
  return {'queued', priority}
end
redis.call('HSET', R .. ':state', ARGV[2], string.format('sent 0 0 1 0 0 0 %d', now))
redis.call('ZADD', S .. ':ready', now + tonumber(ARGV[4]), run .. '|' .. ARGV[2])
return {'new', priority}
