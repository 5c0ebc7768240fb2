-- Appends a piece of a model's reply to the events, if its attempt still counts. ARGV: run, step, attempt, owner, detail (JSON).
-- Replies 1 if it was added.
use(ARGV[1])
local s = status == 'running' and get(ARGV[2])
if not s or s.word ~= 'running' or s.attempt ~= tonumber(ARGV[3]) or s.owner ~= ARGV[4] then return 0 end
event('delta', s.id, s.attempt, s.owner, ARGV[5])
return 1
