-- Starts the next attempt of a waiting step now. ARGV: run, step, resend_ms.
-- Replies {result, sends, priority of the run}: woken; over, if the step has ended; else other.
use(ARGV[1])
if unfinished then return {'unfinished'} end
local s = status == 'running' and get(ARGV[2])
if not s or OVER[s.state] then return {'over', {}, 0} end
if not awaits_retry(s) then return {'other', {}, 0} end
redis.call('ZREM', S .. ':due', 'retry|' .. run .. '|' .. s.id, 'permit|' .. run .. '|' .. s.id)
make_ready(s)
return {'woken', (take_ready(tonumber(ARGV[3]))), priority}
