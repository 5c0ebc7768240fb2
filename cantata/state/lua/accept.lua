-- Accepts a run, once: the same id again changes nothing.
-- ARGV: run, step, spec, resend_ms, timeout_ms, digest of the definitions, their text or "", tenant, a name for this call, by which a repetition
-- is recognized, session or "", how many runs may wait in it, how long to keep it (ms), then field, value, ...
-- Replies {word, priority}; word: new, queued (behind others of its session), known, undefined (the text of the definitions is missing), full.
local id, step, spec, resend_ms, timeout_ms, digest, definitions_text, of_tenant, call = unpack(ARGV, 1, 9)
local of_session, most_waiting, keep_session_ms = unpack(ARGV, 10, 12)

use(id)
if status then
  return {meta('accepted_by') == call and 'new' or 'known', tonumber(meta('priority'))}
end
local queue = of_session ~= '' and session_key(of_session) .. ':queue'
if queue and redis.call('LLEN', queue) > tonumber(most_waiting) then return {'full', 0} end
local shared = S .. ':definitions:' .. digest
if definitions_text ~= '' then
  redis.call('HSETNX', shared, 'text', definitions_text)
elseif redis.call('HEXISTS', shared, 'text') == 0 then
  return {'undefined', 0}
end
retain_definitions(digest)

local priority = priority_among(of_tenant)
redis.call('HSET', R, 'status', 'accepted', 'created_at', now, 'timeout_ms', timeout_ms, 'definitions', digest,
  'left', 1, 'count', 1, 'tenant', of_tenant, 'priority', priority, 'accepted_by', call, unpack(ARGV, 13))
redis.call('HSET', R .. ':steps', step, spec)
redis.call('ZADD', S .. ':runs', now, run)
use(id)
add_bytes(#(meta('request') or ''))
count_total('accepted')
event('accepted')
if queue and enqueue_run(of_session, tonumber(keep_session_ms)) > 1 then
  redis.call('HSET', R .. ':state', step, 'waiting 0 0 1 0 0 0 -')
  redis.call('HSET', R, 'time_left', timeout_ms) -- its clock starts when it is first in the queue
  return {'queued', priority}
end
redis.call('HSET', R, 'deadline_at', string.format('%d', now + tonumber(timeout_ms)), 'working', 1)
redis.call('ZADD', S .. ':due', now + tonumber(timeout_ms), 'deadline|' .. run .. '|')
redis.call('HSET', R .. ':state', step, string.format('sent 0 0 1 0 0 0 %d', now))
redis.call('ZADD', S .. ':ready', now + tonumber(resend_ms), run .. '|' .. step)
return {'new', priority}
