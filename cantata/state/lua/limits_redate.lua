-- Counts a call from now on: its request left later than it was counted. ARGV: window, holder; replies 0 if nothing is known of it, else 1.
local hold = hold_of(ARGV[2])
if not hold then return 0 end
if hold.bucket >= bucket then return 1 end
count(hold.limits, hold.bucket, -1, -hold.tokens)
count(hold.limits, bucket, 1, hold.tokens)
hold.bucket = bucket
redis.call('HSET', P .. ':holds', ARGV[2], cjson.encode(hold))
return 1
