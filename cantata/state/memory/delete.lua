-- Forgets one memory; replies 1 if there was one. ARGV: scope, namespace, key
local place = place_of(ARGV[1], ARGV[2])
local was = known(place, ARGV[3]) and 1 or 0
count(place, -lasting(place, ARGV[3]))
redis.call('HDEL', place.values, ARGV[3])
redis.call('ZREM', place.ends, ARGV[3])
tidy(place)
return was
