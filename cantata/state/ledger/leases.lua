-- All leases of some shards. KEYS[1], ARGV: their prefixes, in a cluster of one.
local leases = {}
for _, shard in ipairs({S, unpack(ARGV)}) do
  for _, lease in ipairs(redis.pcall('ZRANGE', shard .. ':leases', 0, -1)) do leases[#leases + 1] = lease end
end
return leases
