-- Replies the spec of a step that was sent and not begun, or nothing. ARGV: run, step.
use(ARGV[1])
local s = status and get(ARGV[2])
if s and s.state == 'sent' then return (select(2, spec_of(s.id))) end
