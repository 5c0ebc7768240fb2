-- The number of open runs that post to webhooks for a tenant, in some shards. ARGV: tenant, prefixes. KEYS[1], the prefixes: in a cluster of one.
local open = 0
for _, shard in ipairs({S, unpack(ARGV, 2)}) do
  local found = redis.pcall('ZCOUNT', shard .. ':posting:' .. ARGV[1], now, '+inf')
  open = open + (type(found) == 'number' and found or 0)
end
return {open}
