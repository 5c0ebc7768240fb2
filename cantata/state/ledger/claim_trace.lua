-- Replies the fields of the root of a run's trace once, to the first caller after the run is over; else {}. ARGV: run.
use(ARGV[1])
if not status or OPEN[status] or redis.call('HSETNX', R, 'traced', 1) == 0 then return {} end
return redis.call('HMGET', R, 'kind', 'status', 'created_at', 'closed_at', 'error', 'session', 'tenant', 'input_tokens', 'output_tokens',
  'cost_usd', 'count')
