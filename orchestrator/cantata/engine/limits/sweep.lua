-- Gives up what is dead, and gives permits to calls that wait. ARGV: window, ticket, ... of steps that wait and that nobody sent.
-- Replies {tickets that are to come and ask, runs whose budgets are dropped if they are over, {item, error} (JSON) of what could not be read}.
expire_permits()
local coming = advance()
for i = 2, #ARGV do
  local waits = waiting(ARGV[i])
  if not (waits and waits.queue) then coming[#coming + 1] = ARGV[i] end
end
local silent = redis.call('ZRANGEBYSCORE', P .. ':budgets', '-inf', now, 'LIMIT', 0, MAX_ENTRIES)
for _, run in ipairs(silent) do redis.call('ZADD', P .. ':budgets', now + OVERLOOKED, run) end -- those of open runs are looked at again then
return {coming, silent, redis.call('LPOP', P .. ':faults', MAX_FAULTS) or {}}
