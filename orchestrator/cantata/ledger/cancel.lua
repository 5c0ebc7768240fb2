-- Ends a run. If it is cancelled while workflows in Python are under way, these clean up first (cancelling.lua). A run that cannot be ended is deleted.
-- ARGV: run, status, error (JSON), 1 to end it even if what an earlier call left of it cannot be done, who cancels it (JSON: {by, via, verified}) or
-- nothing. Replies its status after that, or false if there is no such run.
local ENDED = {succeeded = true, failed = true, cancelled = true, timed_out = true, exhausted = true}

local was_open -- before this call

local function cancel()
  use(ARGV[1])
  was_open = OPEN[status]
  if not status then return false end
  if ENDED[status] then return status end
  if not OPEN[status] then error('a status of another version') end
  if unfinished and ARGV[4] ~= '1' then return {'unfinished'} end
  if cancelling then return 'cancelling' end
  if status == 'running' and ARGV[2] == 'cancelled' and not unfinished and meta('has_workflow') then
    follow('find_advances', '0', {}, ARGV[3], ARGV[5] or '')
    take_ready(0)
  else
    close(ARGV[2], ARGV[3], ARGV[5])
  end
  write_changes()
  return unfinished and {'unfinished'} or OPEN[status] and cancelling and 'cancelling' or status
end

-- Deletes a run that cannot be ended, since its record cannot be read. Its entries in other lists of the shard go when a sweep finds no such run.
local function delete(id)
  discard()
  forget_work()
  local key = S .. ':run:' .. id
  local known = redis.pcall('HMGET', key, 'status', 'tenant', 'bytes', 'definitions', 'session', 'batch') -- without values if it is no hash
  if OPEN[known[1]] and known[2] then
    count('tenants', known[2], -1)
    if known[6] then count('rows', known[2], -1) end
    count('bytes', known[2], -(tonumber(known[3]) or 0))
  end
  if was_open and known[4] then pcall(release_definitions, known[4], 0) end
  for _, part in ipairs(KEPT_KEYS) do redis.call('UNLINK', key .. part) end
  redis.call('UNLINK', key .. ':logs', key .. ':joins', key .. ':window', key .. ':signals')
  run, R = id, key
  finish_work()
  redis.call('ZREM', S .. ':due', 'deadline|' .. id .. '|')
  redis.call('HDEL', S .. ':clearing', id)
  forget(id)
  if known[5] then
    local queue = session_key(known[5]) .. ':queue'
    redis.pcall('LREM', queue, 1, id)
    pcall(start_next, queue)
  end
end

local is_done, status_then = pcall(cancel)
if is_done then return status_then end
reason_of(status_then) -- raises that of the server
delete(ARGV[1])
return ARGV[2]
