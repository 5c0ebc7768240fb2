-- Forgets one memory; replies 1 if there was one. ARGV: scope, namespace, key
local place = place_of(ARGV[1], ARGV[2])
local packed = redis.call('HGET', place.values, ARGV[3])
local ends, is_over = end_of(place, ARGV[3])
count(place, -size_of(ARGV[3], packed, ends))
redis.call('HDEL', place.values, ARGV[3])
redis.call('ZREM', place.ends, ARGV[3])
tidy(place)
return packed and not is_over and 1 or 0
