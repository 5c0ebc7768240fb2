-- Deletes the messages of a session; replies how many there were. ARGV: session
local key, item = S .. ':session:' .. ARGV[1], 'session:' .. ARGV[1]
local entries = redis.call('LLEN', key .. ':history')
redis.call('UNLINK', key .. ':history')
if redis.call('EXISTS', key .. ':queue') == 1 then charge_more(item, -(charged(item) or 0)) else discharge(item) end
return entries
