-- Recovers lost steps, fires timers and expires runs in one shard. An error of one item costs this item, and one of a list this list (parking.lua).
-- ARGV: resend_ms, most entries of each sort in one call, version of the caller, 1 in the first call of a sweep.
-- Replies named, lists only if they have entries:
-- recovered: run, priority, step, spec, ... of recovered steps, to put at the head of their queues; sends: the same of others to send;
-- overdue: run, priority, step, queue, when it was sent (ms), 1 at the first check, ... of steps that nobody began in time;
-- lost: how many leases were lost; fired: how many timers fired; fault: the lists that could not be read; ended: the runs that this ended;
-- waiting: run|step of steps that wait for rate limits and are to be checked; left: of steps that no longer wait;
-- tasks: run|attempt|step of dispatched steps whose results are to be looked for; revoked: of tasks to revoke;
-- schedules: of each schedule to look at its name, the time, its fields as below, the first of its pending times, and its open run;
-- faults: duty, item, error, tries, ... of each item that failed: at the third time it was parked; is_busy: 1 if there is more to do now.
local resend_ms, most, version = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local recovered, sends, overdue, lost, fired, waiting, tasks = {}, {}, {}, 0, 0, {}, {}
local MAX_LOST_STEPS, LOST_STEPS_MS = 100, 600000 -- that are kept to tell what a lost worker had
local RECHECK_MS = 30000 -- ms until a step that waits for a rate limit is checked again
local MAX_PENDING = 50 -- times of a schedule that one look may start
local MIN_TASK_CHECK_MS, MAX_TASK_CHECK_MS = 4000, 60000 -- until the result of a task is looked for again

local DUTY_CALLS, MIN_DUTY_CALLS, SWEEP_CALLS = 250, 80, 1500 -- commands of a duty, after which it leaves its other entries to the next call: fewer if
                                                              -- those before it took many, but some, so that no duty waits for another
local PARKED_AT_ONCE = 5 -- items that failed, of those that one sweep looks at
local unread = {} -- lists that cannot be read, and why

-- Calls a function that handles a list; an error of it costs this list.
local function list(name, handle)
  local is_done, why = pcall(handle)
  if not is_done then unread[#unread + 1] = name .. ': ' .. reason_of(why) end
end

local ends, is_busy = 0, 0 -- of a duty: after how many commands it ends

local function begin_duty() ends = calls + math.max(MIN_DUTY_CALLS, math.min(DUTY_CALLS, SWEEP_CALLS - calls)) end

-- Whether a duty goes on with its next entry.
local function goes_on()
  if calls < ends then return true end
  is_busy = 1
end

-- Handles each item of a list whose time has come.
local function each_due(duty, key, handle)
  list(duty, function()
    begin_duty()
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', S .. key, '-inf', now, 'LIMIT', 0, most)) do
      if not goes_on() then break end
      isolate(duty, member, version, function() handle(member) end)
    end
  end)
end

-- Whether an entry waits, since an earlier call left something of its run: meanwhile the run takes no other call.
local function waits(key, member)
  if unfinished then redis.call('ZADD', S .. key, now + FINISH_MS, member) end
  return unfinished
end

local function add(to, step, spec)
  to[#to + 1] = run; to[#to + 1] = priority; to[#to + 1] = step; to[#to + 1] = spec
end

local function flush()
  local ready = take_ready(resend_ms)
  for i = 1, #ready, 2 do
    add(sends, ready[i], ready[i + 1])
  end
  for _, item in ipairs(following) do sends[#sends + 1] = item end
  following = {}
  if unfinished then
    redis.call('ZADD', S .. ':unfinished', now, run)
    is_busy = 1
  end
  forget_work()
  write_changes()
end

each_due('unfinished', ':unfinished', function(id)
  use(id)
  if unfinished and OPEN[status] then flush() else finish_work() end
end)

each_due('leases', ':leases', function(member)
  local id, attempt, owner, step = string.match(member, '^([^|]*)|(%d+)|([^|]*)|(.*)$')
  use(id)
  if waits(':leases', member) then return end
  redis.call('ZREM', S .. ':leases', member)
  local s = status == 'running' and get(step)
  if s and s.state == 'running' and s.attempt == tonumber(attempt) then
    local spec, text = spec_of(step) -- read before anything is written, since that may fail
    local info = redis.call('HGET', R .. ':info', step) or '{}'
    local losses = cjson.decode(info).lost or {}
    lost = lost + 1
    count_total('lost')
    s.crashes = s.crashes + 1
    if will_be_refused(s) then announce(s) end
    event('lost', step, s.attempt, owner)
    redis.call('LPUSH', S .. ':lost_steps', now .. '|' .. worker_of(owner) .. '|' .. run .. '|' .. step)
    redis.call('LTRIM', S .. ':lost_steps', 0, MAX_LOST_STEPS - 1)
    redis.call('PEXPIRE', S .. ':lost_steps', LOST_STEPS_MS)
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
end)

local function late_message()
  local by, refused = meta('timeout_by'), meta('refused')
  local why = refused and '; a step waits for a worker that can execute it: ' .. cjson.decode(refused:match(' (.*)')).message or ''
  return string.format('the run did not end within its %.15g s%s', tonumber(meta('timeout_ms')) / 1000, by and by ~= '' and ' (' .. by .. ')' or '') .. why
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

each_due('timers', ':due', function(member)
  local what, id, step = string.match(member, '^([^|]*)|([^|]*)|(.*)$')
  use(id)
  if what ~= 'deadline' and waits(':due', member) then return end
  redis.call('ZREM', S .. ':due', member)
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
end)

-- The longer a step has waited, the longer until it is checked again: it is in a long queue, and so are others.
local function look_at_ready(member, look_at)
  local id, step = string.match(member, '^([^|]*)|(.*)$')
  use(id)
  local s = get(step)
  if not s or s.state ~= 'sent' then return redis.call('ZREM', S .. ':ready', member) end
  local sent_at = tonumber(s.owner)
  local spec, text = spec_of(step)
  redis.call('ZADD', S .. ':ready', now + math.min(math.max(resend_ms, now - sent_at), MAX_RESEND_MS), member)
  if look_at == UNSENT then return add(recovered, step, text) end
  if look_at == NEW then -- its message is as old as this sweep
    s.owner = now_text
    put(s)
    redis.call('ZADD', S .. ':ready', now + resend_ms, member)
    return add(sends, step, text)
  end
  add(overdue, step, spec.queue or 'coordinator')
  overdue[#overdue + 1] = sent_at
  overdue[#overdue + 1] = look_at - sent_at <= resend_ms and 1 or 0
end

list('ready', function()
  begin_duty()
  local unbegun = redis.call('ZRANGEBYSCORE', S .. ':ready', '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #unbegun, 2 do
    if not goes_on() then break end
    local member, look_at = unbegun[i], tonumber(unbegun[i + 1])
    isolate('lost', member, version, function() look_at_ready(member, look_at) end)
  end
end)

-- The longer a task has run, the longer until its result is looked for again. Mostly a worker has seen it by then.
each_due('tasks', ':tasks', function(member)
  local id, attempt, step = string.match(member, '^([^|]*)|(%d+)|(.*)$')
  use(id)
  local s = get(step)
  if not is_dispatched(s, attempt) then
    redis.call('ZREM', S .. ':tasks', member)
    if string.find(states[step] or '', '^dispatched ') then redis.call('RPUSH', S .. ':revoked', member) end -- its run is over, and not cleared so far
    return
  end
  local since = tonumber(s.owner)
  local spec = spec_of(step)
  local most = spec.heartbeat_s and math.min(spec.heartbeat_s * 1000, MAX_TASK_CHECK_MS) or MAX_TASK_CHECK_MS
  local again = now + math.max(MIN_TASK_CHECK_MS, math.min((now - since) / 2, most))
  local deadline = since + spec.timeout_s * 1000
  redis.call('ZADD', S .. ':tasks', string.format('%d', now < deadline and math.min(again, deadline) or again), member)
  tasks[#tasks + 1] = member
end)

list('clearing', function()
  local found = redis.call('HSCAN', S .. ':clearing', 0, 'COUNT', 10)[2]
  if #found == 0 then return end
  local at = now % (#found / 2) -- any of them, so that one that fails is in nobody's way
  local id, place = found[2 * at + 1], found[2 * at + 2]
  isolate('clearing', id, version, function()
    use(id)
    clear(place)
  end, place)
  is_busy = redis.call('EXISTS', S .. ':clearing') == 1 and 1 or is_busy
end)

each_due('expiry', ':finished', forget)

each_due('item_ends', ':item_ends', function(item)
  local name = check_item(item) and string.match(item, '^session:(.*)$')
  if name then
    redis.call('ZREM', S .. ':sessions', name)
    redis.call('ZREM', tenant_sessions_key(name), name)
  end
end)

local schedules, was_busy = {}, is_busy
if ARGV[4] == '1' then each_due('schedules', ':schedules', function(scope)
  local key = schedule_key(scope)
  local fields = redis.call('HMGET', key, 'spec', 'request', 'labels', 'quota', 'next', 'mark', 'skipped_ms', 'grace_ms')
  if not fields[1] and redis.call('EXISTS', key) == 0 then return redis.call('ZREM', S .. ':schedules', scope) end -- it is gone
  schedules[#schedules + 1] = {scope, now, fields, redis.call('LRANGE', key .. ':pending', 0, MAX_PENDING - 1), open_run_of(key) or ''}
end) end
is_busy = was_busy -- they stay in the list until the caller has looked at them: those that are left are for the next sweep

if ARGV[4] == '1' then list('parked', function() look_at_parked(version, PARKED_AT_ONCE) end) end

local function pop(key)
  local popped = {}
  list(key, function() popped = redis.call('LPOP', S .. ':' .. key, most) or {} end)
  return popped
end

local left, revoked = pop('left'), pop('revoked')
local function if_any(entries) return #entries > 0 and entries or nil end

return named{
  recovered = if_any(recovered), sends = if_any(sends), overdue = if_any(overdue), lost = lost, fired = fired, fault = if_any(table.concat(unread, '; ')),
  ended = if_any(ended_runs), waiting = if_any(waiting), left = if_any(left), tasks = if_any(tasks), revoked = if_any(revoked),
  schedules = if_any(schedules), faults = if_any(faults), is_busy = is_busy == 1 and 1 or nil,
}
