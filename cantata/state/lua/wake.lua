-- Lets a step that waits for its next try have it now. ARGV: run, step, resend_ms.
-- Replies {word, sends}: woken; over, if the step will never be tried again; else other.
use(ARGV[1])
local s = status == 'running' and get(ARGV[2])
if not s or OVER[s.word] then return {'over', {}} end
if not awaits_retry(s) then return {'other', {}} end
redis.call('ZREM', S .. ':due', 'retry|' .. run .. '|' .. s.id, 'permit|' .. run .. '|' .. s.id)
make_ready(s)
return {'woken', (dispatch(tonumber(ARGV[3])))}
