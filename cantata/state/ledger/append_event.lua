-- Appends an event to an open run. ARGV: run, type, step or "", detail (JSON). Replies 1 if it was appended.
use(ARGV[1])
if status ~= 'running' and status ~= 'accepted' then return 0 end
event(ARGV[2], ARGV[3], nil, nil, ARGV[4])
return 1
