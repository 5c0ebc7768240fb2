-- Keeps a memory if it is still what the writer saw. A repeated call is executed once.
-- ARGV: scope, namespace, key, mark, the mark it is to have now ("*" any, "" it is to be absent), ms to live ("" as its namespace says, "keep" as
--       before), items, value, the most bytes that the tenant may keep, and namespaces
-- Replies {"ok"}, {"changed"} if it is not what was expected, or {"quota", which, what is used of it}.
local mark, expected = ARGV[4], ARGV[5]
if earlier_reply(mark) then return {'ok'} end
local place = place_of(ARGV[1], ARGV[2])
if expected ~= '*' then
  local packed = known(place, ARGV[3])
  if (packed and string.match(packed, '^%S+') or '') ~= expected then return {'changed'} end
end
local which, used = put(place, ARGV[3], mark, ARGV[7], ARGV[8], ARGV[6], {ARGV[9], ARGV[10]})
if which then return {'quota', which, used} end
return {record_reply(mark, 'ok')}
