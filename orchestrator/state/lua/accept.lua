-- Takes a run in, once: the same id again changes nothing. Replies 1 if it is new, 0 if it is known, -1 if its definitions must be given too.
-- ARGV: run, step, spec, resend_ms, timeout_ms, digest of the definitions, their text or "", how long to keep them (ms), then field, value, ...
use(ARGV[1])
if status then return 0 end
local shared = S .. ':definitions:' .. ARGV[6]
if ARGV[7] ~= '' then
  redis.call('SET', shared, ARGV[7], 'NX', 'PX', ARGV[8])
elseif redis.call('EXISTS', shared) == 0 then
  return -1
end
redis.call('PEXPIRE', shared, ARGV[8], 'GT')
redis.call('HSET', R, 'status', 'accepted', 'created_at', now, 'deadline_at', now + tonumber(ARGV[5]), 'definitions', ARGV[6],
  'left', 1, 'count', 1, unpack(ARGV, 9))
redis.call('HSET', R .. ':steps', ARGV[2], ARGV[3])
redis.call('HSET', R .. ':state', ARGV[2], string.format('sent 0 0 1 0 0 0 %d', now))
redis.call('ZADD', S .. ':ready', now + tonumber(ARGV[4]), run .. '|' .. ARGV[2])
redis.call('ZADD', S .. ':due', now + tonumber(ARGV[5]), 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
event('accepted')
return 1
