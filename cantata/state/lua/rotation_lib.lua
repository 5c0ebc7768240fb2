-- Put before the script of rotations: how one lies in Redis.
-- KEYS[1] = R, cantata:{rotation:<tenant>/<team>/<session>}. Both keys expire when nobody has asked for a while.
--   R:count  string  the places that were given
--   R:taken  zset    step -> its place
local R = KEYS[1]
