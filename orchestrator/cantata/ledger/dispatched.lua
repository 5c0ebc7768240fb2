-- Reads a step whose task is under way. ARGV: run, step, attempt.
-- Replies {what its handler got but for values, owner of its lease, ms since it was dispatched}, or {} if this attempt of it is over.
use(ARGV[1])
local s = get(ARGV[2])
if not s or s.attempt ~= tonumber(ARGV[3]) then return {} end
if s.state == 'running' then return {handler_inputs(s, true), s.owner, 0} end
return is_dispatched(s, ARGV[3]) and {handler_inputs(s, true), '', now - tonumber(s.owner)} or {}
