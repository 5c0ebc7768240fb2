-- Sets how long the memories of a namespace live if they are given no time of their own. ARGV: the time (ms), "" for good, and the write (JSON), of which
-- scope, namespace, memory_bytes and memory_namespaces count, as in put.lua. Replies {"ok"}, or {"quota", which, what is used of it}.
local write = cjson.decode(ARGV[2])
local place = place_of(write.scope, write.namespace)
local before = bare_bytes(place)
local after = ARGV[1] ~= '' and #place.name + ENTRY_BYTES or 0
local which, used = exceeded(place, after - before, write)
if which then return {'quota', which, used} end
if ARGV[1] == '' then redis.call('HDEL', place.ttls, place.name) else redis.call('HSET', place.ttls, place.name, ARGV[1]) end
count(place, after - before)
tidy(place)
return {'ok'}
