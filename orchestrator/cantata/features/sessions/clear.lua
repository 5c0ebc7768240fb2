-- Deletes the messages of a session; replies how many there were. ARGV: session
local key, item = S .. ':session:' .. ARGV[1], 'session:' .. ARGV[1]
local entries = redis.pcall('LLEN', key .. ':history')
if type(entries) == 'table' then entries = 1 end -- no list
redis.call('UNLINK', key .. ':history')
if type(redis.pcall('LLEN', key .. ':queue')) == 'table' then redis.call('UNLINK', key .. ':queue') end
if redis.call('EXISTS', key .. ':queue') == 1 then charge_more(item, -(charged(item) or 0)) else discharge(item) end
return entries
