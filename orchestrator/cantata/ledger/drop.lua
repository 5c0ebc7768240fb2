-- Deletes an ended run before its retention is over, since its result was delivered. ARGV: run. An open run, or an unknown one, does not change.
-- One whose open steps are still being cleared, or whose events are not posted yet, goes after that.
use(ARGV[1])
if not status or OPEN[status] then return 0 end
if is_in_outbox() or redis.call('HEXISTS', S .. ':clearing', run) == 1 then
  redis.call('HSET', R, 'retention_ms', 1)
  redis.call('ZADD', S .. ':finished', now, run)
  return 1
end
for _, part in ipairs(KEPT_KEYS) do redis.call('UNLINK', R .. part) end
redis.call('UNLINK', R .. ':logs')
forget(run)
return 1
