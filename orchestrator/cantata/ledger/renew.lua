-- Renews leases. ARGV: lease_ms, lease, lease, ... Replies the leases that are lost: swept, stopped, or of a run that is over.
local lost = {}
for i = 2, #ARGV do
  local status = redis.call('HGET', S .. ':run:' .. string.match(ARGV[i], '^[^|]*'), 'status')
  if OPEN[status] and redis.call('ZSCORE', S .. ':leases', ARGV[i]) then
    redis.call('ZADD', S .. ':leases', now + tonumber(ARGV[1]), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
