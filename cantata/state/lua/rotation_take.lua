-- Gives a step the next place, from 0; one that has a place keeps it. ARGV: step, how many steps are remembered, how long to keep them (s)
local known = redis.call('ZSCORE', R .. ':taken', ARGV[1])
if known then return tonumber(known) end
local place = redis.call('INCR', R .. ':count') - 1
redis.call('ZADD', R .. ':taken', place, ARGV[1])
redis.call('ZREMRANGEBYRANK', R .. ':taken', 0, -tonumber(ARGV[2]) - 1)
redis.call('EXPIRE', R .. ':count', ARGV[3])
redis.call('EXPIRE', R .. ':taken', ARGV[3])
return place
