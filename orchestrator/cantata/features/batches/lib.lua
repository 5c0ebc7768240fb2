-- The prelude of the scripts of batches, behind ledger/charges.lua. KEYS[1] = S, the shard of all batches of a tenant. ARGV[1]: tenant/name, percent-encoded; ARGV[2]: its arguments (JSON).
--   S:batches:<tenant>  zset  name -> when it was begun (ms)                      entries of batches that are gone go when another is begun
-- Of a batch B = S:batch:<tenant>/<name>. All expire together some time after it is over; none does before.
--   B                hash    uid, identity (JSON: what may not change while it goes on), state, total?, submitted, delivered, failed, round, out_bytes,
--                            input_tokens, output_tokens, cost_usd?, budget_usd?, created_at, closed_at?, and settings of whoever feeds it
--   B:prices         hash    priced: delivered rows that have cost something; unpriced: those with a model call whose price is not known; small_to, small_from:
--                            rows before and from here are in small batches of the provider (of all rounds)
--   B:delivered:<i>  bitmap  of the rows from i * 65536: its result was delivered
--   B:failed:<i>     bitmap  likewise: it was delivered, and had failed
--   B:feeder         string  the process that feeds it                             expires unless it is renewed
local scope, given = ARGV[1], cjson.decode(ARGV[2])
local B = S .. ':batch:' .. scope
local PIECE = 65536

local function field(name) return redis.call('HGET', B, name) end

local function number(name) return tonumber(field(name) or 0) end

-- The fields and values of a batch, as replies have them.
local function all_fields()
  local flat = redis.call('HGETALL', B)
  for _, each in ipairs(redis.call('HGETALL', B .. ':prices')) do flat[#flat + 1] = each end
  return flat
end

-- Calls a command with each key of the batch, and the arguments behind it.
local function each_key(command, ...)
  for _, key in ipairs({B, B .. ':feeder', B .. ':prices'}) do redis.call(command, key, ...) end
  for i = 0, math.floor(number('submitted') / PIECE) do
    for _, part in ipairs({':delivered:', ':failed:'}) do redis.call(command, B .. part .. i, ...) end
  end
end

local function count_total(what, n) redis.call('HINCRBY', S .. ':totals', what, n) end

-- Counts the bytes of the batch: its settings, and two bits a row.
local function charge_batch(of_tenant)
  local item = 'batch:' .. scope
  of_tenant = of_tenant or select(2, charged(item))
  if not of_tenant then return end -- an older version began it
  local bytes = 2 * math.ceil(number('submitted') / 8)
  for _, name in ipairs({'identity', 'labels', 'webhooks', 'file'}) do bytes = bytes + #(redis.call('HGET', B, name) or '') end
  charge(of_tenant, item, bytes, field('closed_at') and now + number('keep_ms') or nil)
end

local function set_state(state)
  if field('state') then count_total('batches:' .. field('state'), -1) end
  count_total('batches:' .. state, 1)
  redis.call('HSET', B, 'state', state)
  if state == 'done' or state == 'cancelled' then
    redis.call('HSET', B, 'closed_at', string.format('%d', now))
    each_key('PEXPIRE', field('keep_ms'))
    charge_batch()
  end
end
