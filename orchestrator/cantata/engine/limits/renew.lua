-- Keeps the slots and reservations of calls under way. ARGV: window, lease_ms, holder, holder, ...; those without a permit are ignored.
for i = 3, #ARGV do
  redis.call('ZADD', P .. ':active', 'XX', now + tonumber(ARGV[2]), ARGV[i])
end
expire_permits()
return 0
