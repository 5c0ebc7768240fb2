-- Applies the request rates of tenants. ARGV: microseconds between two requests, burst, then for each key the number of requests.
-- KEYS = cantata:{limits}:requests:<tenant>, string: when its full burst is available again (microseconds); expires then.
-- Replies for each key {how many may be served, milliseconds until the others may retry}; a request that must wait counts for nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local every, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = {}
for n, key in ipairs(KEYS) do
  local rested = math.max(now, tonumber(redis.call('GET', key) or 0))
  local free = math.max(0, math.min(tonumber(ARGV[n + 2]), math.floor((now + burst * every - rested) / every)))
  if free > 0 then
    rested = rested + free * every
    redis.call('SET', key, string.format('%.0f', rested), 'PX', math.ceil((rested - now) / 1000))
  end
  replies[n] = {free, math.ceil((rested + every - burst * every - now) / 1000)}
end
return replies
