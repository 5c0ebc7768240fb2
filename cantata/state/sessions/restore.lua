-- Replaces the messages of a session. ARGV: session, tenant, message (JSON), ...
local history, bytes = S .. ':session:' .. ARGV[1] .. ':history', 0
redis.call('UNLINK', history)
for i = 3, #ARGV do
  redis.call('RPUSH', history, ARGV[i])
  bytes = bytes + #ARGV[i]
end
charge(ARGV[2], 'session:' .. ARGV[1], bytes)
