-- Ends a call: what it cost is spent, its slot is free. Told twice it changes nothing; told late, after it was given up, its cost still counts.
-- ARGV: window, holder, tokens, nano or "" if the price is unknown. Replies ticket (run|step), ms, ...: whose turn comes sooner.
local holder, tokens, nano = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) or 0

give_up_dead()
local text = redis.call('HGET', P .. ':holds', holder)
if not text then return {} end
local hold = cjson.decode(text)
redis.call('HDEL', P .. ':holds', holder)
redis.call('ZREM', P .. ':late', holder)
local was_held = redis.call('ZREM', P .. ':held', holder) == 1
if was_held then give_back(holder, hold) end
for _, budget in ipairs(hold.budgets) do book(budget, '', tokens, nano) end

local sooner = {}
for _, terms in ipairs(hold.limits) do
  local limit = limit_of(unpack(terms))
  local rate = limit.tpm
  if rate and tokens ~= hold.tokens and hold.bucket >= rate.head then
    if hold.bucket == bucket then rate.here = rate.here + tokens - hold.tokens end
    count(rate, hold.bucket, tokens - hold.tokens)
  end
  if limit.concurrency and was_held then
    local took = now - hold.at
    local usual = tonumber(redis.call('GET', limit.key .. ':hold')) or took
    redis.call('SET', limit.key .. ':hold', string.format('%.0f', usual + 0.2 * (took - usual)), 'PX', LASTING)
  end
  hasten(limit, sooner)
end
return sooner
