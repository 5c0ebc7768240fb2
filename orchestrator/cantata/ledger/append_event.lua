-- Appends an event to an open run; one of an attempt, if that still counts. ARGV: run, type, step or "", detail (JSON), then attempt, owner or nothing.
-- Replies 1, or 0 if the run is over, or the attempt counts no more. Events beyond MAX_APPENDED are left out: a run's own events are always written.
local MAX_APPENDED = 64000000 -- bytes of such events of a run: pieces of replies, mostly, whose whole is in the outputs
use(ARGV[1])
if not OPEN[status] or (ARGV[5] and not has_lease(get(ARGV[3]), ARGV[5], ARGV[6])) then return 0 end
local bytes = EVENT_BYTES + #ARGV[4]
local appended = redis.call('HINCRBY', R, 'appended', bytes)
if appended <= MAX_APPENDED then
  event(ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[4])
elseif appended - bytes <= MAX_APPENDED then
  event('warning', nil, nil, nil, '{"message":"the run has 64 MB of events such as pieces of replies; further ones are left out, outputs are whole"}')
end
return 1
