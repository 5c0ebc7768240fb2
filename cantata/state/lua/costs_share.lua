-- Adds measurements to running means. ARGV: how long to keep them (s), most fields, weight of one measurement, then field, count, mean ms, ...
local weight = tonumber(ARGV[3])
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2]) then redis.call('DEL', KEYS[1]) end
for i = 4, #ARGV, 3 do
  local before, mean = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or nil), tonumber(ARGV[i + 2])
  if before then mean = before + (1 - (1 - weight) ^ tonumber(ARGV[i + 1])) * (mean - before) end
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.4f', mean))
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return #ARGV
