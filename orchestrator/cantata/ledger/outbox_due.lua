-- Tenants of some shards for whom runs that post to webhooks are to be created now, those who have waited longest first.
-- ARGV: how many of each shard, prefixes. KEYS[1], the prefixes: in a cluster of one. Replies {place of the shard, tenant, ...}.
local due = {}
for place, shard in ipairs({S, unpack(ARGV, 2)}) do
  for _, of_tenant in ipairs(redis.pcall('ZRANGEBYSCORE', shard .. ':outbox', '-inf', now, 'LIMIT', 0, ARGV[1])) do
    due[#due + 1] = place
    due[#due + 1] = of_tenant
  end
end
return due
