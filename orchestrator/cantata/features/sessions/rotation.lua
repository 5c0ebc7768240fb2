-- Gives a step the next place, from 0; one that has a place keeps it. ARGV: step, how many steps are remembered, how long to keep them (s)
-- KEYS[1] = R, cantata:{rotation:<tenant>/<team>/<session>}. Both keys expire when nobody has asked for a while.
--   R:count  string  the places that were given
--   R:taken  zset    step -> its place
local R = KEYS[1]
local known = redis.call('ZSCORE', R .. ':taken', ARGV[1])
if known then return tonumber(known) end
local place = redis.call('INCR', R .. ':count') - 1
redis.call('ZADD', R .. ':taken', place, ARGV[1])
redis.call('ZREMRANGEBYRANK', R .. ':taken', 0, -tonumber(ARGV[2]) - 1)
redis.call('EXPIRE', R .. ':count', ARGV[3])
redis.call('EXPIRE', R .. ':taken', ARGV[3])
return place
