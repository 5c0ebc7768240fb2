-- Counts a call from now on: its request left later than it was counted. ARGV: window, holder; replies 0 if nothing is known of it, else 1.
local text = redis.call('HGET', P .. ':holds', ARGV[2])
if not text then return 0 end
local hold = cjson.decode(text)
if hold.bucket >= bucket then return 1 end
for _, terms in ipairs(hold.limits) do
  local limit = limit_of(unpack(terms))
  for _, each in ipairs({{limit.rpm, 1}, {limit.tpm, hold.tokens}}) do
    local rate, n = each[1], each[2]
    if rate then
      if hold.bucket >= rate.head then count(rate, hold.bucket, -n) end
      count(rate, bucket, n)
    end
  end
end
hold.bucket = bucket
redis.call('HSET', P .. ':holds', ARGV[2], cjson.encode(hold))
return 1
