-- Keeps a memory if it is still what the writer saw. A repeated call is executed once.
-- ARGV: the write (JSON) and the value (JSON). The write: {scope, namespace, key, mark, expected: the mark it is to have now, "" if it is to be absent,
-- nothing for any, ttl (ms; "" as its namespace says, "keep" as before), items, memory_bytes and memory_namespaces: the most that the tenant may keep}
-- Replies {"ok"}, {"changed"} if it is not what was expected, or {"quota", which, what is used of it}.
local write = cjson.decode(ARGV[1])
if earlier_reply(write.mark) then return {'ok'} end
local place = place_of(write.scope, write.namespace)
if write.expected then
  local packed = known(place, write.key)
  if (packed and string.match(packed, '^%S+') or '') ~= write.expected then return {'changed'} end
end
local which, used = put(place, write, write.items, ARGV[2], write.ttl)
if which then return {'quota', which, used} end
return {record_reply(write.mark, 'ok')}
