-- The spec of a step that was sent and that nobody began yet. ARGV: run, step. Replies it, or nothing.
use(ARGV[1])
local s = status and get(ARGV[2])
if s and s.word == 'sent' then return (spec_of(s.id)) end
