-- Replies fields of a run once for a purpose, to the first caller after the run is over; else {}. ARGV: run, mark of the purpose, field, ...
use(ARGV[1])
if not status or OPEN[status] or redis.call('HSETNX', R, ARGV[2], 1) == 0 then return {} end
return redis.call('HMGET', R, unpack(ARGV, 3))
