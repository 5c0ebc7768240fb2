-- Ends a run. If it is cancelled while workflows in Python are under way, these clean up first: all other steps are stopped, and the code of the outermost
-- ones gets CancelledError with its next advance. A run that cannot be ended is deleted. ARGV: run, status, error (JSON). Replies its status after that,
-- or false if there is no such run.
local MAX_STOPPED = 2000 -- open steps: this call stops all of them
local GRACE_S = 30 -- of a workflow that names none
local ENDED = {succeeded = true, failed = true, cancelled = true, timed_out = true, exhausted = true}

-- The open steps, and the advances of the outermost workflows among them, with the longest grace of these.
local function open_steps()
  local open, advances, outermost, grace_s = {}, {}, {}, 0
  local cells = redis.call('HGETALL', R .. ':state')
  for i = 1, #cells, 2 do
    local s = parse(cells[i], cells[i + 1])
    if not OVER[s.state] then
      open[#open + 1] = s
      local spec = spec_of(s.id)
      if spec.kind == 'workflow.advance' and spec.params.root then advances[spec.params.root] = s end -- without it, its code has not begun
    end
  end
  for root, s in pairs(advances) do
    local is_outermost = true
    for at in string.gmatch(root, '()/') do is_outermost = is_outermost and not advances[string.sub(root, 1, at - 1)] end
    if is_outermost then
      outermost[s.id] = true
      grace_s = math.max(grace_s, spec_of(s.id).params.grace_s or GRACE_S)
    end
  end
  return open, outermost, grace_s
end

local function clean_up()
  if status ~= 'running' or ARGV[2] ~= 'cancelled' or not meta('has_workflow') or counts.left > MAX_STOPPED then return false end
  local open, outermost, grace_s = open_steps()
  if grace_s == 0 then return false end
  cancelling = ARGV[3]
  local ends_at = string.format('%d', math.min(now + grace_s * 1000, time_left and now + time_left or tonumber(meta('deadline_at'))))
  redis.call('HSET', R, 'cancelling', cancelling, 'deadline_at', ends_at)
  redis.call('HDEL', R, 'time_left')
  redis.call('ZADD', S .. ':due', ends_at, 'deadline|' .. run .. '|')
  event('cancelling', nil, nil, nil, cjson.encode({until_ms = tonumber(ends_at)}))
  local stopped = 0
  for _, s in ipairs(open) do
    remove_entries(s)
    if outermost[s.id] then -- an attempt under way has no lease any more, and counts no more
      redis.call('HSET', R, 'cancelled:' .. s.id, 1)
      s.state, s.pending, s.taken = 'waiting', 0, 1
      mark_sent(s, UNSENT - now)
    else
      s.state, s.owner = 'skipped', '-'; put(s)
      event('skipped', s.id)
      stopped = stopped + 1
    end
  end
  decrement_left(stopped)
  update_deadline()
  return true
end

local was_open -- before this call

local function cancel()
  use(ARGV[1])
  was_open = OPEN[status]
  if not status then return false end
  if ENDED[status] then return status end
  if not OPEN[status] then error('a status of another version') end
  if cancelling or clean_up() then return 'cancelling' end
  close(ARGV[2], ARGV[3])
  write_changes()
  return ARGV[2]
end

-- Deletes a run that cannot be ended, since its record cannot be read. Its entries in other lists of the shard go when a sweep finds no such run.
local function delete(id)
  discard()
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
