-- Lists the keys of a namespace. ARGV: scope, namespace
local place = place_of(ARGV[1], ARGV[2])
local is_over, keys = {}, {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', place.ends, '-inf', now)) do is_over[key] = true end
for _, key in ipairs(redis.call('HKEYS', place.values)) do
  if not is_over[key] then keys[#keys + 1] = key end
end
return keys
