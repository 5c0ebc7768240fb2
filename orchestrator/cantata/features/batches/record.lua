-- Records rows that were submitted or delivered; a repetition changes nothing.
-- Given: {round: another than that of the batch changes nothing, submitted?: rows before this one may have runs, total?, out_bytes?, small_to?, small_from?: rows
-- before and from here are in small batches of the provider, rows: {{row, 1 if it failed, input tokens, output tokens, cost or "" if it is not known, 1 if a model call
-- has no known price}, ...}}
-- Replies {field, value, ...}; {} if there is no such batch.
if redis.call('EXISTS', B) == 0 then return {} end
if given.round ~= number('round') then return all_fields() end
if given.submitted and given.submitted > number('submitted') then
  redis.call('HSET', B, 'submitted', given.submitted)
  charge_batch()
end
for _, name in ipairs({'total', 'out_bytes'}) do
  if given[name] then redis.call('HSET', B, name, string.format('%d', given[name])) end
end
local prices = B .. ':prices'
for _, name in ipairs({'small_to', 'small_from'}) do
  if given[name] then redis.call('HSET', prices, name, given[name]) end
end
if number('cost_usd') > 0 and redis.call('HEXISTS', prices, 'priced') == 0 then -- the version before counted none
  redis.call('HSET', prices, 'priced', math.max(1, number('delivered') - number('failed')))
end
local counts, priced, unpriced = {delivered = 0, failed = 0, input_tokens = 0, output_tokens = 0}, 0, 0
for _, each in ipairs(given.rows) do
  local row, has_failed, tokens_in, tokens_out, cost, lacks_price = unpack(each)
  local piece, bit = math.floor(row / PIECE), row % PIECE
  if redis.call('SETBIT', B .. ':delivered:' .. piece, bit, 1) == 0 then
    redis.call('SETBIT', B .. ':failed:' .. piece, bit, has_failed)
    counts.delivered, counts.failed = counts.delivered + 1, counts.failed + has_failed
    counts.input_tokens, counts.output_tokens = counts.input_tokens + tokens_in, counts.output_tokens + tokens_out
    if cost ~= '' then redis.call('HINCRBYFLOAT', B, 'cost_usd', cost) end
    if cost ~= '' and tonumber(cost) > 0 then priced = priced + 1 end
    unpriced = unpriced + lacks_price
  end
end
if counts.delivered > 0 then
  count_total('rows:failed', counts.failed)
  count_total('rows:succeeded', counts.delivered - counts.failed)
end
for name, n in pairs(counts) do
  if n ~= 0 then redis.call('HINCRBY', B, name, n) end
end
if priced > 0 then redis.call('HINCRBY', prices, 'priced', priced) end
if unpriced > 0 then redis.call('HINCRBY', prices, 'unpriced', unpriced) end
local is_over = field('state') == 'done' or field('state') == 'cancelled'
if not is_over and field('total') and number('delivered') >= number('total') then
  set_state('done')
elseif is_over then
  each_key('PEXPIRE', field('keep_ms')) -- bitmaps that this call made
end
return all_fields()
