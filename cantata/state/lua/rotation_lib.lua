-- The prelude of the script of rotations: its keys.
-- KEYS[1] = R, cantata:{rotation:<tenant>/<team>/<session>}. Both keys expire when nobody has asked for a while.
--   R:count  string  the places that were given
--   R:taken  zset    step -> its place
local R = KEYS[1]
