-- The states of a step, behind run.lua.

local OVER = {done = true, failed = true, skipped = true}
local MOVES = {
  waiting        = {ready = true, sent = true, running = true, waiting_signal = true, failed = true, skipped = true},
  ready          = {sent = true, running = true, waiting_signal = true, failed = true, skipped = true},
  sent           = {sent = true, running = true, failed = true, skipped = true},
  running        = {done = true, failed = true, skipped = true, waiting = true, sent = true, waiting_signal = true, dispatched = true},
  dispatched     = {running = true, failed = true, skipped = true, waiting_signal = true}, -- running: its outcome is being recorded
  waiting_signal = {done = true, failed = true, skipped = true},
}

local function process_of(owner) return string.match(owner, '^(.*)~') or owner end

-- Adds the usage of an attempt whose outcome does not count, since its step was stopped. Counts once, however often it is called.
local function add_usage_once(step, attempt, usage)
  if usage and redis.call('HSETNX', R, 'used:' .. attempt .. '|' .. step, 1) == 1 then add_usage(usage) end
end

-- The count of the run's clock that a step belongs to; nil if it only waits for others, or is over.
local function role(s)
  if s.state == 'waiting_signal' then return 'asking' end
  if s.state == 'sent' or s.state == 'running' or s.state == 'dispatched' or (s.state == 'waiting' and s.attempt > 0) then return 'working' end
end

local function parse(id, packed)
  local state, attempt, pending, taken, failures, crashes, quorum, owner =
    string.match(packed, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not state then error('the state of step ' .. id .. ' of run ' .. run .. ' cannot be read: ' .. packed) end
  local s = {id = id, state = state, attempt = tonumber(attempt), pending = tonumber(pending), taken = tonumber(taken),
             failures = tonumber(failures), crashes = tonumber(crashes), quorum = tonumber(quorum), owner = owner}
  s.role = role(s)
  return s
end

local function get(id)
  local packed = states[id]
  if packed == nil then
    packed = redis.call('HGET', R .. ':state', id)
    states[id] = packed
  end
  local s = packed and parse(id, packed) or nil
  if s and not OPEN[status] and not OVER[s.state] then s.state, s.owner = 'skipped', '-' end
  return s
end

local function pack(s)
  return string.format('%s %d %d %d %d %d %d %s', s.state, s.attempt, s.pending, s.taken, s.failures, s.crashes, s.quorum, s.owner) -- quicker than `..`
end

local function put(s)
  local new_role = role(s)
  if new_role ~= s.role then
    if s.role then increase(s.role, -1) end
    if new_role then increase(new_role, 1) end
    s.role, roles_changed = new_role, true
  end
  set_state(s.id, pack(s))
end

local function move(s, state)
  if not MOVES[s.state] or not MOVES[s.state][state] then
    error('step ' .. s.id .. ' of run ' .. run .. ' cannot go from ' .. s.state .. ' to ' .. state)
  end
  s.state = state
end

local function lease_of(s) return run .. '|' .. s.attempt .. '|' .. s.owner .. '|' .. s.id end

local function task_of(s) return run .. '|' .. s.attempt .. '|' .. s.id end

-- Marks a step as sent; if nobody begins it, a sweep checks its message. Until then its owner field holds the time it was sent.
local function mark_sent(s, resend_ms)
  move(s, 'sent')
  s.owner = string.format('%d', now)
  put(s)
  redis.call('ZADD', S .. ':ready', look_after(resend_ms), run .. '|' .. s.id)
end

-- Whether an attempt of a step has this lease.
local function has_lease(s, attempt, owner) return s and s.state == 'running' and s.attempt == tonumber(attempt) and s.owner == owner end

-- Whether the task of an attempt was dispatched: then any worker may record its outcome.
local function is_dispatched(s, attempt) return s and s.state == 'dispatched' and s.attempt == tonumber(attempt) end

-- Whether a step has been tried and waits for its next attempt.
local function awaits_retry(s) return s and s.state == 'waiting' and s.attempt > 0 end

-- Marks a step as begun by an owner. Replies how long (ms) it had been sent, '' if it was not.
local function mark_begun(s, owner)
  local waited = ''
  if s.state == 'sent' then
    redis.call('ZREM', S .. ':ready', run .. '|' .. s.id)
    waited = now - (tonumber(s.owner) or now)
  end
  move(s, 'running')
  s.attempt, s.owner = s.attempt + 1, owner
  put(s)
  return waited
end

local function add_lease(s, lease_ms) redis.call('ZADD', S .. ':leases', now + lease_ms, lease_of(s)) end

-- Whether the process that began a step has refused it before: then its start is no event, unless something else than a refusal comes of it.
local function will_be_refused(s)
  local refused = s.attempt > 1 and cjson.decode(redis.call('HGET', R .. ':info', s.id) or '{}').refused
  return refused and refused[process_of(s.owner)]
end

-- Writes the event of a start.
local function announce(s)
  if s.attempt > 1 then redis.call('HDEL', R, 'refused') end
  event('started', s.id, s.attempt, s.owner)
end

-- Leases a begun step to its owner. Replies what its handler gets, and as `waited_ms` how long it had been sent, if it was.
local function lease_begun(s, lease_ms, waited)
  add_lease(s, lease_ms)
  if not will_be_refused(s) then announce(s) end
  local needed = handler_inputs(s)
  needed.waited_ms = waited ~= '' and waited or nil
  return needed
end

-- Leases a step to an owner. Replies as the above.
local function lease(s, owner, lease_ms) return lease_begun(s, lease_ms, mark_begun(s, owner)) end

local KEPT_KEYS = {'', ':steps', ':state', ':edges', ':out', ':info', ':given', ':names', ':expansions', ':blobs', ':log', ':closed'}

-- The number of a run's keys that exist, without its logs, which may still get lines.
local function count_parts(key)
  local parts = {}
  for i, part in ipairs(KEPT_KEYS) do parts[i] = key .. part end
  return redis.call('EXISTS', unpack(parts))
end

-- At most so many bytes of a text, cut between two characters.
local function truncate(text, most)
  if #text <= most then return text end
  while most > 0 and string.byte(text, most + 1) >= 128 and string.byte(text, most + 1) < 192 do most = most - 1 end
  return string.sub(text, 1, most)
end

local OUTAGES = {OOM = true, MISCONF = true, READONLY = true, NOREPLICAS = true, NOPERM = true, BUSY = true, LOADING = true}

-- What an error that `pcall` caught says. One of the server, which is no fault of what was handled, is raised again.
local function reason_of(why)
  local text = type(why) == 'table' and why.err or tostring(why)
  if OUTAGES[string.match(text, '^%-?(%u+) ') or ''] then error(why, 0) end
  return truncate(string.gsub(string.gsub(text, '^user_script:%d+: ', ''), '[^ -~]', '?'), 300)
end
