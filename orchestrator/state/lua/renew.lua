-- Keeps leases alive. ARGV: lease_ms, lease, lease, ... Replies the leases that are lost: swept, cancelled or over.
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', S .. ':leases', ARGV[i]) then
    redis.call('ZADD', S .. ':leases', now + tonumber(ARGV[1]), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
