-- Recovers lost steps, fires timers and expires runs in one shard. ARGV: resend_ms, most entries of each sort in one call.
-- Replies {recovered, sends, overdue, lost, fired, fault, ended, waiting, left, tasks, revoked, schedules}:
-- run, priority, step, spec, ... of recovered steps, to put at the head of their queues; the same of others to send; run, priority, step, queue, when it was sent (ms), 1 at the first check, ... of steps that nobody began in time;
-- how many leases were lost, and how many timers fired; "" for no fault; the runs that this ended; run|step of steps that wait for rate limits and are to
-- be checked, and of steps that no longer wait; run|attempt|step of dispatched steps whose results are to be looked for, and of tasks to revoke;
-- of each schedule to look at its name, the time, its fields as below, the first of its pending times, and its open run.
local resend_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local recovered, sends, overdue, lost, fired, waiting, tasks = {}, {}, {}, 0, 0, {}, {}
local RECHECK_MS = 30000 -- ms until a step that waits for a rate limit is checked again
local MAX_PENDING = 50 -- times of a schedule that one look may start
local MIN_TASK_CHECK_MS, MAX_TASK_CHECK_MS = 4000, 60000 -- until the result of a task is looked for again

local function due(key) return redis.call('ZRANGEBYSCORE', S .. key, '-inf', now, 'LIMIT', 0, most) end

local function add(list, step, spec)
  list[#list + 1] = run; list[#list + 1] = priority; list[#list + 1] = step; list[#list + 1] = spec
end

local function flush()
  local list = dispatch(resend_ms)
  for i = 1, #list, 2 do
    add(sends, list[i], list[i + 1])
  end
  for _, item in ipairs(following) do sends[#sends + 1] = item end
  following = {}
  fresh, to_skip, signalled, settled, ended = {}, {}, {}, {}, {}
  write_changes()
end

for _, member in ipairs(due(':leases')) do
  redis.call('ZREM', S .. ':leases', member)
  local id, attempt, owner, step = string.match(member, '^([^|]*)|(%d+)|([^|]*)|(.*)$')
  use(id)
  local s = status == 'running' and get(step)
  if s and s.state == 'running' and s.attempt == tonumber(attempt) then
    lost = lost + 1
    count_total('lost')
    s.crashes = s.crashes + 1
    if will_be_refused(s) then announce(s) end
    event('lost', step, s.attempt, owner)
    local spec, text = spec_of(step)
    local info = redis.call('HGET', R .. ':info', step) or '{}'
    local losses = cjson.decode(info).lost or {}
    table.insert(losses, {attempt = s.attempt, worker = worker_of(owner), at_ms = now})
    info = with_members(info, {lost = cjson.encode(losses), refused = false})
    local most_attempts = tonumber(meta('max_attempts'))
    if spec.at_most_once then
      park(s, owner)
    elseif s.crashes >= most_attempts then
      put(s)
      local attempts = {}
      for _, each in ipairs(losses) do attempts[#attempts + 1] = 'attempt ' .. each.attempt .. ' on ' .. each.worker end
      local poison = {code = 'poison', step = step, message = 'step ' .. step .. ' crashed ' .. s.crashes .. ' workers (' ..
        table.concat(attempts, ', ') .. '); it is not tried again (defaults.max_attempts: ' .. most_attempts .. ')'}
      fail(s, 'failed', with_members(info, {error = cjson.encode(poison)}))
    else
      redis.call('HSET', R .. ':info', step, info)
      mark_sent(s, resend_ms)
      add(recovered, step, text)
      count_total('recovered')
    end
    flush()
  end
end

local function late_message()
  local by = meta('timeout_by')
  return string.format('the run did not end within its %.15g s%s', tonumber(meta('timeout_ms')) / 1000, by and by ~= '' and ' (' .. by .. ')' or '')
end

local function awaits_signal(s) return s and s.state == 'waiting_signal' end

-- Records that a timer of a wait fired now.
local function record_timer(s, field)
  edit_info(s.id, {[field] = now_text})
end

-- Timers: the condition, and the action.
local TIMERS = {
  retry = {awaits_retry, make_ready},
  permit = {awaits_retry, function(s)
    waiting[#waiting + 1] = run .. '|' .. s.id
    redis.call('ZADD', S .. ':due', now + RECHECK_MS, 'permit|' .. run .. '|' .. s.id)
  end},
  join = {function(s) return s and s.state == 'waiting' and s.pending > 0 end, force_join},
  remind = {awaits_signal, function(s)
    record_timer(s, 'reminded_at_ms')
    event('reminded', s.id)
    notify({'wait'}, s.id, {reason = 'reminder'})
  end},
  escalate = {awaits_signal, function(s)
    local to = spec_of(s.id).params.wait.escalate_to or {}
    record_timer(s, 'escalated_at_ms')
    event('escalated', s.id, nil, nil, #to > 0 and cjson.encode({to = to}) or nil)
    local escalated_to = table.concat(to, ',')
    redis.call('HSET', R, 'labels', with_members(meta('labels') or '{}', {escalated_to = cjson.encode(escalated_to)}))
    notify({'wait'}, s.id, {reason = 'escalation', escalated_to = escalated_to})
  end},
  wait = {awaits_signal, function(s)
    local info = not sleeps(spec_of(s.id)) and '{"timed_out":true}'
    if info then redis.call('HSET', R .. ':info', s.id, info) end
    event('done', s.id, nil, nil, info)
    resolve(s, 'done', {done = true}, redis.call('HGET', R .. ':given', s.id) or 'null')
  end},
  deadline = {function() return true end, function() close('timed_out', cjson.encode({error = {code = 'timeout', message = late_message()}})) end},
}

for _, member in ipairs(due(':due')) do
  redis.call('ZREM', S .. ':due', member)
  local what, id, step = string.match(member, '^([^|]*)|([^|]*)|(.*)$')
  use(id)
  if status == 'running' or (status == 'accepted' and what == 'deadline') then
    local is_due, fire = unpack(TIMERS[what])
    local s = step ~= '' and get(step) or nil
    if is_due(s) then
      if what ~= 'permit' then fired = fired + 1 end
      fire(s)
      flush()
    end
  elseif what == 'permit' then
    redis.call('RPUSH', S .. ':left', id .. '|' .. step)
  end
end

-- The longer a step has waited, the longer until it is checked again: it is in a long queue, and so are others.
local unbegun = redis.call('ZRANGEBYSCORE', S .. ':ready', '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #unbegun, 2 do
  local member, look_at = unbegun[i], tonumber(unbegun[i + 1])
  local id, step = string.match(member, '^([^|]*)|(.*)$')
  use(id)
  local s = get(step)
  if s and s.state == 'sent' then
    local sent_at = tonumber(s.owner)
    redis.call('ZADD', S .. ':ready', now + math.min(math.max(resend_ms, now - sent_at), MAX_RESEND_MS), member)
    local spec, text = spec_of(step)
    if look_at == UNSENT then
      add(recovered, step, text)
    else
      add(overdue, step, spec.queue or 'coordinator')
      overdue[#overdue + 1] = sent_at
      overdue[#overdue + 1] = look_at - sent_at <= resend_ms and 1 or 0
    end
  else
    redis.call('ZREM', S .. ':ready', member)
  end
end

-- The longer a task has run, the longer until its result is looked for again. Mostly a worker has seen it by then.
for _, member in ipairs(due(':tasks')) do
  local id, attempt, step = string.match(member, '^([^|]*)|(%d+)|(.*)$')
  use(id)
  local s = get(step)
  if is_dispatched(s, attempt) then
    local since = tonumber(s.owner)
    local again = now + math.max(MIN_TASK_CHECK_MS, math.min((now - since) / 2, MAX_TASK_CHECK_MS))
    local deadline = since + spec_of(step).timeout_s * 1000
    redis.call('ZADD', S .. ':tasks', string.format('%d', now < deadline and math.min(again, deadline) or again), member)
    tasks[#tasks + 1] = member
  else
    redis.call('ZREM', S .. ':tasks', member)
  end
end

local id, place = unpack(redis.call('HSCAN', S .. ':clearing', 0, 'COUNT', 10)[2])
if id then
  use(id)
  clear(place)
end

for _, id in ipairs(due(':finished')) do forget(id) end
for _, item in ipairs(due(':item_ends')) do
  local name = check_item(item) and string.match(item, '^session:(.*)$')
  if name then
    redis.call('ZREM', S .. ':sessions', name)
    redis.call('ZREM', tenant_sessions_key(name), name)
  end
end
local schedules = {}
for _, scope in ipairs(due(':schedules')) do
  local key = schedule_key(scope)
  local fields = redis.call('HMGET', key, 'spec', 'request', 'labels', 'quota', 'next', 'mark', 'skipped_ms', 'grace_ms')
  schedules[#schedules + 1] = {scope, now, fields, redis.call('LRANGE', key .. ':pending', 0, MAX_PENDING - 1), open_run_of(key) or ''}
end

local function pop(key) return redis.call('LPOP', S .. key, most) or {} end

return {recovered, sends, overdue, lost, fired, '', ended_runs, waiting, pop(':left'), tasks, pop(':revoked'), schedules}
