-- Pauses all calls of a model; of several pauses the longest counts. ARGV: window, model, ms. Replies when it ends (ms).
local key = P .. ':model:' .. ARGV[2] .. ':pause'
local ends = math.max(now + tonumber(ARGV[3]), tonumber(redis.call('GET', key)) or 0)
redis.call('SET', key, string.format('%.0f', ends), 'PX', ends - now)
return ends
