-- Drops the budgets of runs that are over. ARGV: window, run, 1 if it is over else 0, ...; those of open runs are looked at again later.
-- A run that was heard of meanwhile is left alone.
for i = 2, #ARGV, 2 do
  local run = ARGV[i]
  local look_at = redis.call('ZSCORE', P .. ':budgets', run)
  if look_at and tonumber(look_at) <= now then
    if ARGV[i + 1] == '1' then
      redis.call('DEL', P .. ':budget:run:' .. run)
      redis.call('ZREM', P .. ':budgets', run)
    else
      redis.call('ZADD', P .. ':budgets', now + OVERLOOKED, run)
    end
  end
end
