-- Puts an item behind a list, or makes one of it. A repeated call is executed once.
-- ARGV: the write (JSON) and the item (JSON). The write: as of put.lua, without `expected`, `ttl` and `items`, with value_bytes: the most of the list.
-- Replies {"ok", items}, {"other", the first character of what is there} if that is no list, {"large", bytes}, or {"quota", which, what is used of it}.
local write = cjson.decode(ARGV[1])
local done = earlier_reply(write.mark)
if done then return {'ok', tonumber(done)} end
local place = place_of(write.scope, write.namespace)
local packed = known(place, write.key)
local items, open = '0', '['
if packed then
  local _, at
  _, at, items = string.find(packed, '^%S+ (%S+) ')
  if items == '-' then return {'other', string.sub(packed, at + 1, at + 1)} end
  open = string.sub(packed, at + 1, -2) -- without its last bracket
end
local list = table.concat({open, items == '0' and '' or ',', ARGV[2], ']'})
if #list > write.value_bytes then return {'large', #list} end
items = string.format('%d', items + 1)
local which, used = put(place, write, items, list, 'keep')
if which then return {'quota', which, used} end
return {'ok', tonumber(record_reply(write.mark, items))}
