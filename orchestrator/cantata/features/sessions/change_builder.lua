-- Changes fields of a builder if they are still what the writer saw. ARGV: the change (JSON): {scope, tenant, keep_ms, expected: {{field, text or ""}, ...},
-- changed: {field: text}}. Replies 1, or 0 if another writer was faster.
local change = cjson.decode(ARGV[1])
local item = 'builder:' .. change.scope
local key = S .. ':' .. item
for _, pair in ipairs(change.expected) do
  if (redis.call('HGET', key, pair[1]) or '') ~= pair[2] then return 0 end
end
local bytes = charged(item)
if not bytes then -- it is new, or of a version that did not count it
  bytes = 0
  for _, field in ipairs(redis.call('HKEYS', key)) do bytes = bytes + #field + #(redis.call('HGET', key, field) or '') end
end
for field, text in pairs(change.changed) do
  bytes = bytes + #text - #(redis.call('HGET', key, field) or '')
  if redis.call('HSET', key, field, text) == 1 then bytes = bytes + #field end
end
redis.call('PEXPIRE', key, change.keep_ms)
charge(change.tenant, item, bytes, now + change.keep_ms)
return 1
