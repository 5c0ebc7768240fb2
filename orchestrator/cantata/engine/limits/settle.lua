-- Ends a call: records its cost and frees its slots. A repetition changes nothing; a late call, after it was given up, still counts its cost.
-- ARGV: window, holder, tokens, nano or "" if the price is unknown. Replies the tickets that were called.
local holder, tokens, nano = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) or 0

expire_permits()
local permit = permit_of(holder)
if not permit then return {} end
redis.call('HDEL', P .. ':permits', holder)
redis.call('ZREM', P .. ':late', holder)
release(holder, permit)
for _, budget in ipairs(permit.budgets) do charge(budget, '', tokens, nano) end
count(permit.limits, permit.bucket, 0, tokens - permit.tokens)
return advance()
