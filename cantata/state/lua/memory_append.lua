-- Puts an item behind a list, or makes one of it. A repeated call is executed once.
-- ARGV: scope, namespace, key, mark, item, the most bytes the list may have, the most that the tenant may keep, and namespaces
-- Replies {"ok", items}, {"other", the first character of what is there} if that is no list, {"large", bytes}, or {"quota", which, what is used of it}.
local mark = ARGV[4]
local done = earlier_reply(mark)
if done then return {'ok', tonumber(done)} end
local place = place_of(ARGV[1], ARGV[2])
local packed = known(place, ARGV[3])
local items, open = '0', '['
if packed then
  local _, at
  _, at, items = string.find(packed, '^%S+ (%S+) ')
  if items == '-' then return {'other', string.sub(packed, at + 1, at + 1)} end
  open = string.sub(packed, at + 1, -2) -- without its last bracket
end
local list = table.concat({open, items == '0' and '' or ',', ARGV[5], ']'})
if #list > tonumber(ARGV[6]) then return {'large', #list} end
items = string.format('%d', items + 1)
local which, used = put(place, ARGV[3], mark, items, list, 'keep', {ARGV[7], ARGV[8]})
if which then return {'quota', which, used} end
return {'ok', tonumber(record_reply(mark, items))}
