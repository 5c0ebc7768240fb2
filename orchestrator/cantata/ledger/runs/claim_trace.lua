-- Replies fields of a run once, to the first caller after the run is over; else {}. ARGV: run, field, ...
use(ARGV[1])
if not status or OPEN[status] or redis.call('HSETNX', R, 'traced', 1) == 0 then return {} end
return redis.call('HMGET', R, unpack(ARGV, 2))
