-- Begins a batch, or finds one with this name. Given: {name, tenant (percent-encoded), of: the tenant, identity, uid, settings: {field: text}}
-- Replies {1 if this call began it, field, value, ...}. Nothing changes if its identity is another. One whose budget was spent goes on with a higher one.
local batches = S .. ':batches:' .. given.tenant
local is_new = redis.call('EXISTS', B) == 0
if is_new then
  for _, old in ipairs(redis.call('ZRANGE', batches, 0, 19)) do
    if redis.call('EXISTS', S .. ':batch:' .. given.tenant .. '/' .. old) == 0 then redis.call('ZREM', batches, old) end
  end
  redis.call('ZADD', batches, now, given.name)
  redis.call('HSET', B, 'uid', given.uid, 'identity', given.identity, 'created_at', string.format('%d', now), 'submitted', 0,
    'delivered', 0, 'failed', 0, 'round', 0, 'out_bytes', 0, 'input_tokens', 0, 'output_tokens', 0)
  set_state('running')
end
if field('identity') == given.identity then
  for name, value in pairs(given.settings) do
    if value == '' then redis.call('HDEL', B, name) else redis.call('HSET', B, name, value) end
  end
  charge_batch(given.of)
  local budget = tonumber(field('budget_usd') or nil)
  if field('state') == 'budget_spent' and (not budget or budget > number('cost_usd')) then set_state('running') end
end
return {is_new and 1 or 0, unpack(all_fields())}
