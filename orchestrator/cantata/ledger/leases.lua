-- The leases of some shards that run out within so many ms. ARGV: ms, or +inf for all leases. KEYS[1], the other ARGV: prefixes, in a cluster of one.
local leases, by = {}, ARGV[1] == '+inf' and '+inf' or now + tonumber(ARGV[1])
for _, shard in ipairs({S, unpack(ARGV, 2)}) do
  for _, lease in ipairs(redis.pcall('ZRANGEBYSCORE', shard .. ':leases', '-inf', by)) do leases[#leases + 1] = lease end
end
return leases
