-- Lets a tenant go on at its pace. ARGV: microseconds between two requests, how many may come at once.
-- KEYS[1] = cantata:{limits}:pace:<tenant>, string: when it is fully rested again (microseconds); expires then.
-- Replies 0, or the milliseconds until it may ask again; a request that must wait takes nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local every, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local rested = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + every
local wait = rested - burst * every - now
if wait > 0 then return math.ceil(wait / 1000) end
redis.call('SET', KEYS[1], string.format('%.0f', rested), 'PX', math.ceil((rested - now) / 1000))
return 0
