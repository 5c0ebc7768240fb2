-- Replies fields of a run once for a purpose, to the first caller after the run is over; else {}.
-- ARGV: run, mark of the purpose, bytes of the beginning of its request that are replied first, and of its end that are replied second, field, ...
use(ARGV[1])
if not status or OPEN[status] or redis.call('HSETNX', R, ARGV[2], 1) == 0 then return {} end
local reply, bytes = redis.call('HMGET', R, 'request', unpack(ARGV, 4)), tonumber(ARGV[3])
local request = reply[1] or ''
reply[1] = string.sub(request, 1, bytes)
table.insert(reply, 2, #request > bytes and string.sub(request, math.max(bytes + 1, #request - bytes)) or '')
return reply
