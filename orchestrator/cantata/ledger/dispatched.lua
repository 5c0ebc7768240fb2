-- Reads a step whose task is under way. ARGV: run, step, attempt.
-- Replies named, or {} if this attempt of it is over: `begun`, what its handler got (named); `owner` of its lease, if it has one; `since_ms`: ms since it was dispatched.
use(ARGV[1])
local s = get(ARGV[2])
if not s or s.attempt ~= tonumber(ARGV[3]) then return {} end
if s.state == 'running' then return named{begun = named(handler_inputs(s)), owner = s.owner, since_ms = 0} end
return is_dispatched(s, ARGV[3]) and named{begun = named(handler_inputs(s)), since_ms = now - tonumber(s.owner)} or {}
