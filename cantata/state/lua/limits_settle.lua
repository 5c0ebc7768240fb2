-- Ends a call: records its cost and frees its slots. A repetition changes nothing; a late call, after it was given up, still counts its cost.
-- ARGV: window, holder, tokens, nano or "" if the price is unknown. Replies the tickets that were called.
local holder, tokens, nano = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) or 0

give_up_dead()
local hold = hold_of(holder)
if not hold then return {} end
redis.call('HDEL', P .. ':holds', holder)
redis.call('ZREM', P .. ':late', holder)
release(holder, hold)
for _, budget in ipairs(hold.budgets) do book(budget, '', tokens, nano) end
count(hold.limits, hold.bucket, 0, tokens - hold.tokens)
return advance()
