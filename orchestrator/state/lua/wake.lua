-- Lets a step that waits for its next try have it now. ARGV: run, step, resend_ms. Replies {step, spec} to send, or {}.
use(ARGV[1])
local s = status == 'running' and get(ARGV[2])
if not waits_to_try(s) then return {} end
redis.call('ZREM', S .. ':due', 'retry|' .. run .. '|' .. s.id)
make_ready(s)
return (dispatch(tonumber(ARGV[3])))
