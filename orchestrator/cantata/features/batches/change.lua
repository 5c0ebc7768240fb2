-- Changes the state of a batch. Given: {what: pause, resume, cancel, spend or retry, out_bytes?: of a retry}
-- Replies {1 if this call changed it, field, value, ...}; {} if there is no such batch.
-- A retry forgets which rows were delivered if they failed: they have other runs in the next round.
if redis.call('EXISTS', B) == 0 then return {} end
local CHANGES = {
  pause = {to = 'paused', running = true},
  resume = {to = 'running', paused = true},
  cancel = {to = 'cancelled', running = true, paused = true, budget_spent = true},
  spend = {to = 'budget_spent', running = true},
  retry = {to = 'running', done = true},
}
local change = CHANGES[given.what]
local is_allowed = change[field('state')] and not (given.what == 'retry' and number('failed') == 0)
if is_allowed then
  if given.what == 'retry' then
    each_key('PERSIST')
    for i = 0, math.floor(number('submitted') / PIECE) do
      local delivered, failed = B .. ':delivered:' .. i, B .. ':failed:' .. i
      if redis.call('EXISTS', failed) == 1 then redis.call('BITOP', 'XOR', delivered, delivered, failed) end
      redis.call('DEL', failed)
    end
    redis.call('HSET', B, 'delivered', string.format('%d', number('delivered') - number('failed')), 'failed', 0)
    if given.out_bytes then redis.call('HSET', B, 'out_bytes', string.format('%d', given.out_bytes)) end
    redis.call('HDEL', B, 'closed_at')
    redis.call('HINCRBY', B, 'round', 1)
    charge_batch()
  end
  set_state(change.to)
end
return {is_allowed and 1 or 0, unpack(all_fields())}
