-- Replaces the messages of a session. ARGV: session, tenant, message (JSON), ...
local history, bytes = S .. ':session:' .. ARGV[1] .. ':history', 0
redis.call('UNLINK', history)
for i = 3, #ARGV, 1000 do redis.call('RPUSH', history, unpack(ARGV, i, math.min(i + 999, #ARGV))) end
for i = 3, #ARGV do bytes = bytes + #ARGV[i] end
charge(ARGV[2], 'session:' .. ARGV[1], bytes)
