-- Pauses all calls of a model; of several pauses the longest counts. ARGV: window, model, ms. Replies when it ends (ms).
local key = P .. ':pauses'
local known = redis.call('HGETALL', key)
local ends, last = now + tonumber(ARGV[3]), now
for i = 1, #known, 2 do
  local other = tonumber(known[i + 1])
  if known[i] == ARGV[2] then ends = math.max(ends, other)
  elseif other <= now then redis.call('HDEL', key, known[i])
  else last = math.max(last, other) end
end
redis.call('HSET', key, ARGV[2], string.format('%.0f', ends))
redis.call('PEXPIRE', key, math.max(ends, last) - now)
return ends
