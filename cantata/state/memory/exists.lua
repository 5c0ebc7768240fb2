-- Says whether a memory is there: 1 or 0. ARGV: scope, namespace, key
local place = place_of(ARGV[1], ARGV[2])
local _, is_over = end_of(place, ARGV[3])
return is_over and 0 or redis.call('HEXISTS', place.values, ARGV[3])
