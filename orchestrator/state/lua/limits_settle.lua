-- Ends a call: what it cost is spent, its slot is free. Told twice it changes nothing; told late, after it was given up, its cost still counts.
-- ARGV: window, holder, tokens, nano or "" if the price is unknown. Replies ticket (run|step), ms, ...: whose turn comes sooner.
local holder, tokens, nano = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) or 0
local MOST_HASTENED = 8
local SOON = 500 -- what must be gained (ms) to be worth a word, but for those who may go at once: timers ring twice a second

give_up_dead()
local text = redis.call('HGET', P .. ':holds', holder)
if not text then return {} end
local hold = cjson.decode(text)
redis.call('HDEL', P .. ':holds', holder)
redis.call('ZREM', P .. ':late', holder)
local was_held = redis.call('ZREM', P .. ':held', holder) == 1
if was_held then give_back(holder, hold) end
for _, budget in ipairs(hold.budgets) do book(budget, '', tokens, nano) end

-- Calls at the front of a line whose turn comes sooner than they were told. When a slot will be free nobody knows.
local function hasten(limit, sooner)
  if not front_of(limit) then return end
  local line = redis.call('ZRANGE', limit.key .. ':line', 0, MOST_HASTENED - 1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local asks, back_by, how = asked(limit, line[i])
    local place = {calls = (i - 1) / 2, tokens = line[i + 1] - line[2], first_due = now, in_line = true}
    local at, why = turn_of(limit, place, asks)
    local wait = math.max(0, at - now)
    if wait > 0 and (why == 'concurrency' or back_by - GRACE - at < SOON) then return end
    if how == 'here' then
      ask(limit, line[i], asks, now + wait + GRACE, wait > 0 and 'here' or 'called')
      sooner[#sooner + 1] = line[i]
      sooner[#sooner + 1] = wait
    end
  end
end

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
