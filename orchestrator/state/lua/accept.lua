-- Takes a run in, once: the same id again changes nothing. Replies 1 if it is new, else 0.
-- ARGV: run, step, spec, resend_ms, timeout_ms, then field, value, ... of the run's hash
use(ARGV[1])
if redis.call('EXISTS', R) == 1 then return 0 end
redis.call('HSET', R, 'status', 'accepted', 'created_at', now, 'deadline_at', now + tonumber(ARGV[5]), 'left', 1, 'count', 1, unpack(ARGV, 6))
redis.call('HSET', R .. ':steps', ARGV[2], ARGV[3])
redis.call('HSET', R .. ':state', ARGV[2], 'sent 0 0 1 0 0 0 -')
redis.call('ZADD', S .. ':ready', now + tonumber(ARGV[4]), run .. '|' .. ARGV[2])
redis.call('ZADD', S .. ':due', now + tonumber(ARGV[5]), 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
event('accepted')
return 1
