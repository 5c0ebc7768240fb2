-- Counts a call from now on: its request left later than it was counted. ARGV: window, holder; replies 0 if nothing is known of it, else 1.
local permit = permit_of(ARGV[2])
if not permit then return 0 end
if permit.bucket >= bucket then return 1 end
count(permit.limits, permit.bucket, -1, -permit.tokens)
count(permit.limits, bucket, 1, permit.tokens)
permit.bucket = bucket
redis.call('HSET', P .. ':permits', ARGV[2], cjson.encode(permit))
return 1
