-- Appends an event to an open run; one of an attempt, if that still counts. ARGV: run, type, step or "", detail (JSON), then attempt, owner or nothing.
-- Replies 1 if it was appended.
use(ARGV[1])
if not OPEN[status] or (ARGV[5] and not has_lease(get(ARGV[3]), ARGV[5], ARGV[6])) then return 0 end
event(ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[4])
return 1
