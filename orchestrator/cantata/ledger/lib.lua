-- What follows from the end of a step: its edges, its scope, and the end of the run. Behind run.lua and steps.lua.

local MAX_CALLS = 1000 -- commands after which a call begins nothing more: with what the last of its work takes, it keeps Redis for some 3 ms at most
local CHUNK = 50 -- steps that are read at once
local MAX_TIMERS = 4095 -- of one call that fire in the order of their start if they last equally long: a score has twelve bits below 1 ms
local FINISH_MS = 200 -- until a sweep does what a call left; mostly whoever made that call does it at once

count_calls()

local NOT_FAILED = {succeeded = true, cancelled = true}

local timers = 0      -- of waits that this call has set
local fresh = {}      -- steps made ready by this call, in order: {step, spec text, spec}
local work = {}       -- what follows from this call, the next last: {a name in WORK, its arguments, none of them nil}
local lists           -- of this call, the next last: ids of steps whose in-edges may be resolved; of those that were stopped, whose out-edges are to be
                      -- resolved; of those of which no in-edge was taken; waiting steps whose signal came early (JSON): {id, value, author or ''}
local drained         -- {list = true}: nothing is left of those of an earlier call
local was_settled = {} -- steps whose in-edges this call found resolved
local decoded = {}    -- what this call decoded of R:expansions and R:joins
local ended_runs = {} -- runs that ended in this call
local webhooks_of = {} -- {hooks, details of their events} of runs with webhooks, by run; false without
local NAMED_WEBHOOKS = 3 -- in one event

local function empty_lists() lists, drained = {to_settle = {}, stopped = {}, to_skip = {}, signalled = {}}, {} end

empty_lists()

local function has_room() return calls < MAX_CALLS end

local function follow(...) work[#work + 1] = {...} end

local function count_total(what) redis.call('HINCRBY', S .. ':totals', what, 1) end

-- The members of a JSON object, in order: {{name, its text, the text of its value}, ...}.
local function members_of(object)
  local found, depth, start, at, name, value = {}, 0, 2, 2, nil, nil
  while true do
    local here = string.find(object, '["%[%]{},]', at)
    local sign = string.sub(object, here, here)
    at = here + 1
    if sign == '"' then
      local stop = string.find(object, '["\\]', at)
      while string.sub(object, stop, stop) ~= '"' do stop = string.find(object, '["\\]', stop + 2) end
      at = stop + 1
      if depth == 0 and not name then name, value = string.sub(object, here + 1, stop - 1), string.find(object, '[^:%s]', at) end
    elseif sign == '[' or sign == '{' then
      depth = depth + 1
    elseif depth > 0 then
      if sign ~= ',' then depth = depth - 1 end
    else
      if name then found[#found + 1] = {name, string.sub(object, start, here - 1), string.sub(object, value, here - 1)} end
      if sign == '}' then return found end
      start, name = at, nil
    end
  end
end

-- A JSON object with some members replaced or added, {name: JSON text}, or removed, {name: false}. What others wrote stays the text that it is: cjson
-- rounds numbers to 14 digits and makes an object of an empty list.
local function with_members(object, changes)
  local texts = {}
  for _, member in ipairs(members_of(object)) do
    if changes[member[1]] == nil then texts[#texts + 1] = member[2] end
  end
  for name, text in pairs(changes) do
    if text then texts[#texts + 1] = cjson.encode(name) .. ':' .. text end
  end
  return '{' .. table.concat(texts, ',') .. '}'
end

-- Changes members of how a step ended or stands, as `with_members`.
local function edit_info(id, changes)
  redis.call('HSET', R .. ':info', id, with_members(redis.call('HGET', R .. ':info', id) or '{}', changes))
end

-- The detail of the event `waiting`. Specs of older versions do not have its text.
local function question_of(spec, text)
  if spec.waiting or not spec.params then return spec.waiting end
  local shown = {}
  local function look(object, wanted, into)
    for _, member in ipairs(members_of(object)) do
      if member[1] == wanted then into(member) end
    end
  end
  look(text, 'params', function(params)
    look(params[3], 'asks', function(asks) shown[#shown + 1] = asks[2] end)
    look(params[3], 'wait', function(options)
      look(options[3], 'question', function(question) shown[#shown + 1] = question[2] end)
    end)
  end)
  return #shown > 0 and '{' .. table.concat(shown, ',') .. '}' or nil
end

local function level_of(open) return open <= 1 and 0 or open <= 4 and 3 or open <= 16 and 6 or 9 end

-- Counts one more open delivery of a tenant, a run that posts to a webhook, and replies its priority among these. `elsewhere` are those in other shards.
-- It is no open run of the tenant: its receiver may be away for a day.
local function count_delivery(id, of_tenant, elsewhere)
  local key = S .. ':posting:' .. of_tenant
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now) -- those that a worker of a version ended which does not count them
  redis.call('ZADD', key, now + DELIVERY_MS, id)
  redis.call('PEXPIRE', key, DELIVERY_MS)
  return level_of(redis.call('ZCARD', key) + elsewhere)
end

-- Counts one more open run of a tenant, and replies its priority: the more are open, the lower it is. The runs of a tenant are spread over all shards,
-- except those of one session, so each shard counts its own. Rows of batches are counted apart, and one level lower, and deliveries too.
local function priority_among(id, of_tenant, of_kind, is_row)
  if of_kind == 'webhook' then return count_delivery(id, of_tenant, 0) end
  local open = redis.call('HINCRBY', S .. ':tenants', of_tenant, 1)
  local rows = is_row and redis.call('HINCRBY', S .. ':rows', of_tenant, 1) or redis.call('HGET', S .. ':rows', of_tenant) or 0
  local level = level_of(is_row and rows or open - rows)
  return is_row and math.min(level + 3, 9) or level
end

-- Forgets an ended run, whose keys are gone or expire.
local function forget(id)
  redis.call('ZREM', S .. ':finished', id)
  redis.call('ZREM', S .. ':runs', id)
  local bytes, log_bytes, of_tenant = string.match(redis.call('HGET', S .. ':sizes', id) or '', '^(%d+) (%d+) (.*)$')
  if bytes then
    count('bytes', of_tenant, -tonumber(bytes))
    count('log_bytes', of_tenant, -tonumber(log_bytes))
  end
  redis.call('HDEL', S .. ':sizes', id)
end

local function remove_entries(s)
  if s.state == 'running' then
    if not (in_place and in_place.id == s.id) then redis.call('ZREM', S .. ':leases', lease_of(s)) end
  elseif s.state == 'sent' then redis.call('ZREM', S .. ':ready', run .. '|' .. s.id)
  elseif s.state == 'dispatched' then -- nobody needs the result of its task any more
    if redis.call('ZREM', S .. ':tasks', task_of(s)) == 1 then redis.call('RPUSH', S .. ':revoked', task_of(s)) end
  elseif s.state == 'waiting_signal' then
    local member = run .. '|' .. s.id
    redis.call('ZREM', S .. ':due', 'wait|' .. member, 'remind|' .. member, 'escalate|' .. member)
    if redis.call('ZREM', S .. ':asking', member) == 1 and OPEN[status] then redis.call('HINCRBY', R, 'waits', -1) end
  elseif s.state == 'waiting' then
    if s.attempt > 0 then
      redis.call('ZREM', S .. ':due', 'retry|' .. run .. '|' .. s.id)
      if redis.call('ZREM', S .. ':due', 'permit|' .. run .. '|' .. s.id) == 1 then redis.call('RPUSH', S .. ':left', run .. '|' .. s.id) end
    end
    redis.call('ZREM', S .. ':due', 'join|' .. run .. '|' .. s.id)
  end
end

local function session_key(name) return S .. ':session:' .. name end

-- About how many bytes a history has, by its newest messages.
local function history_bytes(history)
  local entries, bytes = redis.call('LRANGE', history, -TRIMMED, -1), 0
  for _, entry in ipairs(entries) do bytes = bytes + #entry end
  return #entries < TRIMMED and bytes or bytes / #entries * redis.call('LLEN', history)
end

-- Appends the messages of a run to its session's history: the user's, and the answer or the error.
local function record_history(outcome, error_json)
  local kept = redis.call('HMGET', R, 'session_entries', 'request', 'terminals')
  local history = session_key(session) .. ':history'
  local entries, bytes = 0, 0
  local function add(role, content, agent)
    if content == '' then return end
    if #content > MAX_MESSAGE_BYTES then content = truncate(content, MAX_MESSAGE_BYTES) .. '…' end
    local entry = cjson.encode({role = role, content = content, agent = agent, ts = now / 1000, run_id = run})
    entries, bytes = redis.call('RPUSH', history, entry), bytes + #entry
  end
  add('user', cjson.decode(kept[2]).text)
  if outcome == 'succeeded' then
    local terminals = cjson.decode(kept[3])
    local step, agent = nil, nil  -- the last agent's on the way to the answer; steps within it, its instructions, are not others' answers
    local last = answering(terminals[#terminals], function(name)
      local found = string.match(spec_of(name).work or '', '^agents:(.*)$')
      if found and not (step and string.sub(name, 1, #step + 1) == step .. '/') then step, agent = name, found end
    end)
    local out = output_of(last)
    add('assistant', string.sub(out, 1, 1) == '"' and cjson.decode(out) or out, agent)
  else
    add('system_error', cjson.decode(error_json).error.message)
  end
  local too_many = entries - tonumber(kept[1])
  if too_many > 0 and too_many <= TRIMMED then
    for _, entry in ipairs(redis.call('LRANGE', history, 0, too_many - 1)) do bytes = bytes - #entry end
  end
  if too_many > 0 then redis.call('LTRIM', history, too_many, -1) end
  if too_many > TRIMMED then charge(tenant, 'session:' .. session, history_bytes(history)) else charge_more('session:' .. session, bytes) end
end

-- Pauses a run's clock while a step waits for a person and none is under way, and while the run waits for its turn in a session.
-- Called at the end of each script that changes steps.
local function update_deadline()
  if not OPEN[status] or not roles_changed then return end
  roles_changed = false
  if cancelling or (counts.asking == 0 and not time_left) then return end
  local timer = 'deadline|' .. run .. '|'
  local is_parked = counts.asking > 0 and counts.working == 0
  if is_parked and not time_left then
    time_left = tonumber(meta('deadline_at')) - now
    redis.call('HSET', R, 'time_left', string.format('%d', time_left))
    redis.call('ZREM', S .. ':due', timer)
  elseif time_left and not is_parked then
    redis.call('HSET', R, 'deadline_at', string.format('%d', now + time_left))
    redis.call('HDEL', R, 'time_left')
    redis.call('ZADD', S .. ':due', now + time_left, timer)
    time_left = nil
  end
end

-- Starts the first run in the queue of a session.
local function start_next(queue)
  local id = redis.call('LINDEX', queue, 0)
  if not id then return end
  local ended_run = run
  use(id)
  if status ~= 'accepted' then return use(ended_run) end
  mark_sent(get('@start'), SOON)
  update_deadline()
  for _, item in ipairs({run, priority, '@start', (select(2, spec_of('@start')))}) do following[#following + 1] = item end
  use(ended_run)
end

-- The key of the sessions of one tenant.
local function tenant_sessions_key(name) return S .. ':sessions:' .. string.match(name, '^[^/]*') end

-- Appends the run to the queue of its session; replies its position, from 1.
local function enqueue_run(name, keep_ms)
  local aged = redis.call('ZCOUNT', S .. ':sessions', '-inf', now - keep_ms)
  local from = aged > TRIMMED and now % (aged - TRIMMED + 1) or 0 -- anywhere among them: the oldest may be kept for years
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', S .. ':sessions', '-inf', now - keep_ms, 'LIMIT', from, TRIMMED)) do
    if redis.call('EXISTS', session_key(old) .. ':queue', session_key(old) .. ':history') == 0 then -- others are kept longer
      redis.call('ZREM', S .. ':sessions', old)
      redis.call('ZREM', tenant_sessions_key(old), old)
    end
  end
  redis.call('ZADD', S .. ':sessions', now, name)
  redis.call('ZADD', tenant_sessions_key(name), now, name)
  redis.call('PERSIST', session_key(name) .. ':history')
  if not charged('session:' .. name) then charge(tenant, 'session:' .. name, history_bytes(session_key(name) .. ':history')) end
  local queue = session_key(name) .. ':queue'
  local head = redis.call('LINDEX', queue, 0)
  while head and not OPEN[redis.call('HGET', S .. ':run:' .. head, 'status')] do -- it was ended by a worker that is too old for sessions
    redis.call('LPOP', queue)
    start_next(queue)
    head = redis.call('LINDEX', queue, 0)
  end
  return redis.call('RPUSH', queue, run)
end

-- Forgets the run and what this call has changed of it and not written.
local function discard()
  run, status, unwritten, states, read_specs, shared_edges, outputs, new_edges, posts = nil, nil, {}, {}, {}, {}, {}, {}, {}
  for field in pairs(changed) do changed[field] = false end
  roles_changed = false
end

-- Does a part of a run's end on which the rest does not depend: an error costs this part, and is an event of the run.
local function attempt(what, f, ...)
  local ended_run = run
  local is_done, why = pcall(f, ...)
  if is_done then return end
  why = reason_of(why)
  if run ~= ended_run then
    discard()
    use(ended_run)
  end
  event('warning', nil, nil, nil, cjson.encode({message = what .. ' failed when the run ended: ' .. why}))
end

-- Removes an ended run from the queue of its session, records its messages, and starts the next run.
local function dequeue_run(outcome, error_json)
  local queue = session_key(session) .. ':queue'
  local had_its_turn = redis.call('LINDEX', queue, 0) == run
  redis.call('LREM', queue, 1, run)
  if not had_its_turn then return end
  attempt('its entry in the history of the session', record_history, outcome, error_json)
  attempt('the start of the next run of the session', start_next, queue)
  if redis.call('EXISTS', queue) == 0 then
    local keep_ms = meta('session_keep_ms')
    if redis.call('PEXPIRE', session_key(session) .. ':history', keep_ms) == 1 then
      charge_more('session:' .. session, 0, now + keep_ms)
    else -- no message was kept
      discharge('session:' .. session)
    end
  end
end

-- Keeps the definitions of an open run from expiring.
local function retain_definitions(digest)
  local key = S .. ':definitions:' .. digest
  redis.call('HINCRBY', key, 'runs', 1)
  redis.call('PERSIST', key)
end

-- Lets the definitions of an ended run expire no earlier than the run itself, since it may be forked.
local function release_definitions(digest, keep_ms)
  local key = S .. ':definitions:' .. digest
  local last = string.format('%.0f', math.max(now + keep_ms, tonumber(redis.call('HGET', key, 'until')) or 0))
  redis.call('HSET', key, 'until', last)
  if redis.call('HINCRBY', key, 'runs', -1) <= 0 then redis.call('PEXPIREAT', key, last) end
end

-- Whether entries of the outbox need the run and its definitions.
local function is_in_outbox() return #posts > 0 or tonumber(meta('outbox') or 0) > 0 end

-- Deletes the keys that only open runs need, and has the others expire after the run's retention. Entries in the outbox keep it until they are gone.
local function expire_run()
  if is_in_outbox() then return end
  redis.call('UNLINK', R .. ':joins', R .. ':window', R .. ':signals')
  local keep_ms = meta('retention_ms') or 1 -- a run that somebody deleted
  for _, part in ipairs(KEPT_KEYS) do redis.call('PEXPIRE', R .. part, keep_ms) end
  redis.call('PEXPIRE', R .. ':logs', keep_ms)
end

-- Removes the entries of the open steps of an ended run, a piece a call; the run does not expire before that is done. `place` is as in S:clearing.
local function clear(place)
  write_changes()
  local part, at = string.match(place, '^(%S+) (%d+)$')
  local cursor, cells = unpack(redis.call('HSCAN', R .. part, at, 'COUNT', CLEARED))
  for i = 1, #cells, 2 do
    if part == ':window' then
      redis.call('UNLINK', R .. ':backlog:' .. cells[i])
    else
      local is_readable, s = pcall(parse, cells[i], cells[i + 1])
      if not is_readable then -- it has one of these entries at most, or a lease or task, which its run's end makes void
        for _, state in ipairs({'sent', 'waiting_signal', 'waiting'}) do remove_entries({id = cells[i], state = state, attempt = 1}) end
      elseif not OVER[s.state] then remove_entries(s) end
    end
  end
  if cursor ~= '0' then
    redis.call('HSET', S .. ':clearing', run, part .. ' ' .. cursor)
  elseif part == ':window' then
    clear(':state 0')
  else
    redis.call('HDEL', S .. ':clearing', run)
    expire_run()
  end
end

-- Saves memory: a new stream takes 4 kB, its copy only its content. A run may be parked for days, and is kept when it has ended.
local function compact(stream)
  if redis.call('XLEN', stream) < 64 and redis.call('COPY', stream, stream .. ':copy') == 1 then redis.call('RENAME', stream .. ':copy', stream) end
end

-- Writes an accepted run, whose first step has no state yet.
local function write_run(id, step, spec, fields, of_priority)
  local key = S .. ':run:' .. id
  local rows, bytes = {'status', 'accepted', 'created_at', now, 'left', 1, 'count', 1, 'priority', of_priority}, RUN_BYTES + STEP_BYTES
  for field, value in pairs(fields) do
    rows[#rows + 1] = field; rows[#rows + 1] = value
    bytes = bytes + #tostring(value)
  end
  rows[#rows + 1] = 'bytes'; rows[#rows + 1] = bytes
  hset_all(key, rows)
  redis.call('HSET', key .. ':steps', step, spec)
  redis.call('ZADD', S .. ':runs', now, id)
  retain_definitions(fields.definitions)
  count('bytes', fields.tenant, bytes)
  local own = R
  R = key
  event('accepted')
  R = own
end

-- Starts the clock of such a run, and marks its first step as sent; resend_ms 0: the next sweep sends it.
local function start_run(id, step, timeout_ms, resend_ms)
  local key = S .. ':run:' .. id
  redis.call('HSET', key, 'deadline_at', string.format('%d', now + timeout_ms), 'working', 1)
  redis.call('ZADD', S .. ':due', now + timeout_ms, 'deadline|' .. id .. '|')
  redis.call('HSET', key .. ':state', step, string.format('sent 0 0 1 0 0 0 %d', now))
  redis.call('ZADD', S .. ':ready', look_after(resend_ms), id .. '|' .. step)
end

-- CRC-32 of the 16 values of half a byte.
local CRC_OF_HALF = {[0] = 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                     0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c}

-- The CRC-32 of a text, or of what follows a text with the CRC `crc`. Half a byte a step: bit by bit, the ids of ten runs took 20 ms.
local function crc32(text, crc)
  local xor, shift, both = bit.bxor, bit.rshift, bit.band
  crc = bit.bnot(crc or 0)
  for i = 1, #text do
    crc = xor(crc, string.byte(text, i))
    crc = xor(shift(crc, 4), CRC_OF_HALF[both(crc, 15)])
    crc = xor(shift(crc, 4), CRC_OF_HALF[both(crc, 15)])
  end
  return bit.bnot(crc)
end

-- The next number behind one with which an id that begins with a prefix is in this shard and no run has it, and the id. A run that was accepted
-- anew, after its end was deleted or expired, may have left runs that are still kept.
local function next_id(prefix, number)
  local shard, of_prefix, id = tonumber(string.match(S, '{(%d+)}')), crc32(prefix), nil
  local lead, of_lead -- all digits but the last: sixteen numbers share them
  repeat
    repeat
      number = number + 1
      local before = math.floor(number / 16)
      if before ~= lead then lead, of_lead = before, before > 0 and crc32(string.format('%x', before), of_prefix) or of_prefix end
    until bit.band(crc32(string.format('%x', number % 16), of_lead), SHARDS - 1) == shard
    id = prefix .. string.format('%x', number)
  until redis.call('EXISTS', S .. ':run:' .. id) == 0
  return number, id
end

-- The first of some events that a webhook is for, or nil.
local function event_for(hook, events)
  for _, each in ipairs(events) do
    if hook.on[each] then return each end
  end
end

-- What an event of the run says of the webhooks that are for one of these events (JSON); false if none is.
local function post_detail(hooks, events)
  local count, names, on = 0, {}, nil
  for _, hook in ipairs(hooks) do
    local what = event_for(hook, events)
    if what then
      count, on = count + 1, on or what
      if count <= NAMED_WEBHOOKS then names[count] = truncate(hook.alert or hook.to, 200) end
    end
  end
  local more = count > #names and ' and ' .. count - #names .. ' more' or ''
  return count > 0 and cjson.encode({to = table.concat(names, ', ') .. more, on = on})
end

-- Has an event of the run posted to its webhooks that are for one of these events, with more data if given. write_changes writes it to the outbox of the
-- tenant, whatever their number; outbox.lua creates the runs that post.
local function notify(events, step, data)
  if webhooks_of[run] == nil then
    local text = meta('webhooks')
    webhooks_of[run] = text and {hooks = cjson.decode(text), details = {}} or false
  end
  local known = webhooks_of[run]
  if not known then return end
  if known.details[events[1]] == nil then known.details[events[1]] = post_detail(known.hooks, events) end
  if not known.details[events[1]] then return end
  event('webhook', step, nil, nil, known.details[events[1]])
  posts[#posts + 1] = {events = events, step = step, status = status, data = data}
end

-- Creates a run, in this shard, that cancels the batch of the provider that this cancelled run may have created.
local function cancel_provider_batch()
  local create = get('create')
  if not create or create.attempt == 0 then return end
  local _, id = next_id(run .. 'c', 0)
  local spec, start = spec_of('create'), select(2, spec_of('@start'))
  local request = {text = 'cancel the batch of run ' .. run, agent = string.match(spec.work, '^batches:(.*)$'), cancels = run}
  local kept = redis.call('HMGET', R, 'max_attempts', 'retention_ms')
  local of_priority = priority_among(id, tenant, kind_of_run)
  write_run(id, '@start', start, {
    kind = kind_of_run, request = with_members(cjson.encode(request), {batch = output_of('create')}), labels = cjson.encode({tenant = tenant ~= '' and tenant or nil, cancels = run}),
    definitions = definitions, tenant = tenant, timeout_ms = DELIVERY_MS, timeout_by = 'of provider batches', max_attempts = kept[1], max_steps = 10,
    retention_ms = kept[2], accepted_by = '',
  }, of_priority)
  start_run(id, '@start', DELIVERY_MS, SOON)
  count_total('accepted')
  for _, item in ipairs({id, of_priority, '@start', start}) do following[#following + 1] = item end
end

local function schedule_key(scope) return S .. ':schedule:' .. scope end

-- The newest open run of a schedule with this key, or nil.
local function open_run_of(key)
  for _, entry in ipairs(redis.call('LRANGE', key .. ':runs', 0, -1)) do
    local id = string.match(entry, '^[^|]*')
    if OPEN[redis.call('HGET', S .. ':run:' .. id, 'status')] then return id end
  end
end

-- Has the next sweep look at a schedule one of whose runs ended, if times wait for that.
local function wake_schedule(scope)
  if redis.call('EXISTS', schedule_key(scope) .. ':pending') == 0 then return end
  local look_at = redis.call('ZSCORE', S .. ':schedules', scope)
  if look_at and look_at ~= 'inf' then redis.call('ZADD', S .. ':schedules', 'LT', now, scope) end
end

-- Deletes what was left to do of the run: it is done, or the run is over.
local function finish_work()
  local key = R .. ':unfinished'
  redis.call('UNLINK', key, key .. ':to_settle', key .. ':stopped', key .. ':to_skip', key .. ':signalled')
  redis.call('ZREM', S .. ':unfinished', run)
  redis.call('HDEL', R, 'unfinished')
  unfinished = nil
end

-- Forgets what is left to do: the run is over, or another one is used.
local function forget_work()
  fresh, work, was_settled, decoded = {}, {}, {}, {}
  empty_lists()
end

-- Ends the run. Its open steps count as skipped; it is kept for its retention.
-- `by`: who cancelled the run (JSON), if somebody did.
local function close(outcome, error_json, by)
  write_changes()
  if cancelling and outcome ~= 'exhausted' then outcome, error_json = 'cancelled', cancelling end
  redis.call('HSET', R, 'status', outcome, 'closed_at', now, 'error', error_json or '')
  status = outcome
  ended_runs[#ended_runs + 1] = run
  redis.call('ZREM', S .. ':due', 'deadline|' .. run .. '|')
  if kind_of_run ~= 'webhook' then
    count('tenants', tenant, -1)
  elseif redis.call('ZREM', S .. ':posting:' .. tenant, run) == 1 then
    redis.call('ZADD', S .. ':outbox', 'XX', 'LT', now, tenant) -- a further one may have waited for it
  end
  if batch then
    count('rows', tenant, -1)
    redis.call('RPUSH', S .. ':ended:' .. batch, run)
    redis.call('EXPIRE', S .. ':ended:' .. batch, ENDED_S)
  end
  local early_signals = redis.call('HLEN', R .. ':signals')
  if early_signals > 0 then
    count('signals', tenant, -early_signals)
    increase('bytes', -tonumber(meta('signal_bytes') or 0))
    redis.call('UNLINK', R .. ':signals') -- now, since a run with events in the outbox expires later
  end
  count_total((kind_of_run == 'webhook' and 'delivered:' or 'closed:') .. outcome)
  if kind_of_run == 'batch' and outcome == 'cancelled' then attempt('the cancellation of its batch', cancel_provider_batch) end
  attempt('the message to its webhooks', notify, NOT_FAILED[outcome] and {'end'} or {'end', 'failure'})
  local author = #(by or '') > 2 and ',' .. string.sub(by, 2) or '}'
  event('closed', nil, nil, nil, '{"status":"' .. outcome .. '","failures":' .. (meta('failures') or 0) .. author)
  redis.call('XADD', R .. ':closed', '0-1', 'status', outcome)
  compact(R .. ':log')
  compact(R .. ':closed')
  record_size()
  local kept = redis.call('HMGET', R, 'retention_ms', 'schedule')
  local keep_ms = tonumber(kept[1])
  if kept[2] then attempt('the look at its schedule', wake_schedule, kept[2]) end
  redis.call('HSET', R, 'parts', count_parts(R))
  if outcome == 'succeeded' then
    expire_run()
  else
    redis.call('HSET', S .. ':clearing', run, ':window 0') -- where the sweep goes on if the call fails
    attempt('the removal of its entries', clear, ':window 0')
  end
  if is_in_outbox() then redis.call('HSET', R, 'held', 1) else release_definitions(definitions, keep_ms) end
  redis.call('ZADD', S .. ':finished', now + keep_ms, run)
  forget_work()
  if unfinished then finish_work() end
  if session then dequeue_run(outcome, error_json) end
end

local function is_over() return status ~= 'running' end

local function decrement_left(n)
  increase('left', -n)
  if counts.left == 0 and not is_over() then close('succeeded') end
end

local fail

-- Keeps an early signal. Under a name for which one is kept already, it is the last of a queue: fields `name\nN`, whose ends are fields of the run.
local function keep_early_signal(name, value)
  local key, field = R .. ':signals', name
  if redis.call('HEXISTS', key, name) == 1 then field = name .. '\n' .. redis.call('HINCRBY', R, 'signals_to:' .. name, 1) end
  redis.call('HSET', key, field, value)
end

-- Keeps a signal that was kept before all others for its name.
local function keep_signal_first(name, value)
  local key, from = R .. ':signals', 'signals_from:' .. name
  local first = redis.call('HGET', key, name)
  if first then
    redis.call('HSETNX', R, 'signals_to:' .. name, 0)
    local place = redis.call('HINCRBY', R, from, -1) + 1
    redis.call('HSET', key, name .. '\n' .. place, first)
  end
  redis.call('HSET', key, name, value)
  redis.call('HINCRBY', R, 'signal_bytes', #name + #value)
  increase('bytes', #name + #value)
  count('signals', tenant, 1)
end

-- Takes the early signal of a step, stored under its id or under the end of it behind a '/': its value, author and groups. The next of its queue follows.
local function take_early_signal(id)
  local key, name = R .. ':signals', id
  if redis.call('EXISTS', key) == 0 then return nil end
  while name do
    local value = redis.call('HGET', key, name)
    if value then
      redis.call('HDEL', key, name)
      count('signals', tenant, -1)
      redis.call('HINCRBY', R, 'signal_bytes', -#name - #value)
      increase('bytes', -#name - #value)
      local next_of = 'signals_from:' .. name
      local field = redis.call('HEXISTS', R, 'signals_to:' .. name) == 1 and name .. '\n' .. redis.call('HINCRBY', R, next_of, 1)
      local queued = field and redis.call('HGET', key, field)
      if queued then
        redis.call('HDEL', key, field)
        redis.call('HSET', key, name, queued)
      elseif field then
        redis.call('HDEL', R, next_of, 'signals_to:' .. name)
      end
      return string.match(value, '^([^\n]*)\n?([^\n]*)\n?(.*)$')
    end
    name = string.match(name, '/(.+)$')
  end
end

-- Whether a step is a sleep of a workflow in Python: a wait that only its timer ends.
local function sleeps(spec) return spec.kind == 'wait' and spec.params and spec.params.sleeps end

-- Whether a step is a wait of a workflow in Python, behind which others of its name may come.
local function repeats(spec) return (spec.params or {}).repeats end

-- Whether an early signal whose step was not known does not count: its author may not answer, or its value was not checked. Code in Python checks it.
local function is_refused(params, groups)
  local options = params.wait or {}
  if groups == '' or not (options.who or options.answer_schema) then return false end
  if options.answer_schema and not params.repeats then return true end
  if not options.who or groups == '*' then return false end
  for _, group in ipairs(cjson.decode(groups)) do
    for _, name in ipairs(options.who) do
      if group == name then return false end
    end
  end
  return true
end

-- Lists a step among those that wait for a person, and sets its timers.
local function await_person(s, spec)
  local member, options = run .. '|' .. s.id, spec.kind == 'wait' and spec.params and spec.params.wait or {}
  redis.call('ZADD', S .. ':asking', now, member)
  redis.call('HINCRBY', R, 'waits', 1)
  if options.remind_after_s then redis.call('ZADD', S .. ':due', now + options.remind_after_s * 1000, 'remind|' .. member) end
  if options.escalate_after_s then redis.call('ZADD', S .. ':due', now + options.escalate_after_s * 1000, 'escalate|' .. member) end
end

-- Makes a step ready: a wait is parked; anything else is sent, or begun by the caller, as `dispatch` decides.
local function make_ready(s)
  local spec, text = spec_of(s.id)
  if spec.deadline_s then redis.call('ZREM', S .. ':due', 'join|' .. run .. '|' .. s.id) end
  if spec.kind ~= 'wait' then
    fresh[#fresh + 1] = {s, text, spec}
    return
  end
  move(s, 'waiting_signal'); put(s)
  if sleeps(spec) then
    local info = string.format('{"sleeps_until_ms":%d}', now + spec.timeout_s * 1000)
    redis.call('HSET', R .. ':info', s.id, info)
    event('sleeping', s.id, nil, nil, info)
  else
    local params = spec.params or {}
    event('waiting', s.id, nil, nil, question_of(spec, text))
    local value, by, groups = take_early_signal(s.id)
    while value and is_refused(params, groups) do
      event('warning', s.id, nil, nil, cjson.encode({message = 'a signal for step ' .. s.id .. ' came before the step was known, and was dropped: ' ..
        'its author may not answer, or its value could not be checked; answer again'}))
      value, by, groups = take_early_signal(s.id)
    end
    if value then
      table.insert(lists.signalled, 1, cjson.encode({s.id, value, by})) -- they end in the order in which they came
      return
    end
    await_person(s, spec)
  end
  if not sleeps(spec) then notify({'wait'}, s.id) end
  if spec.timeout_s then
    timers = math.min(timers + 1, MAX_TIMERS)
    redis.call('ZADD', S .. ':due', now + spec.timeout_s * 1000 + timers / (MAX_TIMERS + 1), 'wait|' .. run .. '|' .. s.id)
  end
  compact(R .. ':log')
end

-- Reads states of steps that this call does not know.
local function read_states(ids)
  local unknown = {}
  for _, id in ipairs(ids) do
    if states[id] == nil then unknown[#unknown + 1] = id end
  end
  for i, packed in ipairs(hmget_all(R .. ':state', unknown)) do states[unknown[i]] = packed end
end

-- Starts or skips a step whose in-edges are all resolved.
local function settle(s)
  was_settled[s.id] = true
  if s.taken > 0 then make_ready(s) else table.insert(lists.to_skip, s.id) end
end

-- Adds values to a list, in chunks.
local function push_all(key, values)
  for i = 1, #values, 1000 do redis.call('RPUSH', key, unpack(values, i, math.min(i + 999, #values))) end
end

-- Takes the next of one of the lists; nil if there is none.
local function take(list)
  if #lists[list] == 0 and unfinished and not drained[list] then
    local key = R .. ':unfinished:' .. list
    lists[list] = redis.call('LRANGE', key, -CHUNK, -1)
    drained[list] = #lists[list] == 0
    redis.call('LTRIM', key, 0, -CHUNK - 1)
    if list ~= 'signalled' then read_states(lists[list]) end
  end
  return table.remove(lists[list])
end

local function read_specs_of(ids)
  for i, text in ipairs(hmget_all(R .. ':steps', ids)) do
    if text then spec_of(ids[i], text) end
  end
end

-- What follows from a call, by name. It does as much as there is room for, and has the rest follow.
local WORK = {}

-- Makes a join ready without the sources that are still running, and fails those as late.
local function force_join(s)
  was_settled[s.id] = true
  s.pending = 0
  put(s)
  make_ready(s)
  follow('fail_late', s.id, 1, 0)
end

-- Ends a step: removes its entries and records its outcome.
local function finish(s, state, output)
  s.on_the_way = s.state ~= 'ready'
  remove_entries(s)
  move(s, state); s.owner = '-'; put(s)
  if output then
    redis.call('HSET', R .. ':out', s.id, output)
    increase('bytes', #output)
    outputs[s.id] = output
  end
end

-- Reads at once what edges lead to: states, and specs of steps that become ready.
local function read_targets(edges, first, last)
  local targets, ready = {}, {}
  for i = first, last do targets[#targets + 1] = edges[i][1] end
  read_states(targets)
  for _, target in ipairs(targets) do
    if string.find(states[target] or '', '^waiting %d+ 1 ') and not read_specs[target] then ready[#ready + 1] = target end
  end
  if #ready > 1 then read_specs_of(ready) end
end

-- Resolves the out-edges of an ended step from a place in their list on, except those to `except`.
function WORK.resolve_edges(id, state, takes, except, at)
  local edges = edges_of(id)
  while at <= #edges do
    if not has_room() then return follow('resolve_edges', id, state, takes, except, at) end
    local last = math.min(at + CHUNK - 1, #edges)
    if last > at then read_targets(edges, at, last) end
    for i = at, last do
      local edge = edges[i]
      local target = edge[1] ~= except and get(edge[1])
      if target and target.state == 'waiting' and target.pending > 0 then
        target.pending = edge[4] and 0 or target.pending - 1
        if takes[edge[2]] and edge[3] then target.taken = target.taken + 1 end
        local enough = false
        if target.quorum > 0 and state == 'done' then
          target.quorum = target.quorum - 1
          enough = target.quorum == 0
        end
        put(target)
        if target.pending == 0 then settle(target) elseif enough then force_join(target) end
      end
    end
    at = last + 1
  end
end

-- Has follow what the end of a step means for others: its out-edges are resolved, and its window is refilled.
local function propagate(s, state, takes)
  local window = spec_of(s.id).window
  if window and s.on_the_way then follow('refill', window, false) end
  follow('resolve_edges', s.id, state, takes, '', 1)
  decrement_left(1)
end

local function resolve(s, state, takes, output)
  finish(s, state, output)
  propagate(s, state, takes)
end

-- Ends a wait with the value of a signal, and records its author.
local function end_wait(s, value, by)
  if by and by ~= '' then
    edit_info(s.id, {answered_by = cjson.encode(by)})
  end
  event('done', s.id)
  resolve(s, 'done', {done = true}, value)
end

-- Sends further items of a map after one of them ended, as many as its window allows; `has_begun`: an earlier piece of this counted that end.
function WORK.refill(map, has_begun)
  local size, inflight = window_of(map)
  if not size then return end
  if not has_begun then inflight = inflight - 1 end
  local goes_on = has_begun or inflight <= refilled_at(size)
  while goes_on and inflight < size do
    if not has_room() then
      follow('refill', map, true)
      break
    end
    local ids = redis.call('LPOP', R .. ':backlog:' .. map, math.min(size - inflight, CHUNK)) or {}
    if #ids == 0 then break end
    read_states(ids)
    read_specs_of(ids)
    for _, id in ipairs(ids) do
      local item = get(id)
      if not OVER[item.state] then
        make_ready(item)
        inflight = inflight + 1
      end
    end
  end
  redis.call('HSET', R .. ':window', map, size .. ' ' .. inflight)
end

-- Stops an open step.
local function stop(s)
  remove_entries(s); s.state, s.owner = 'skipped', '-'; put(s)
  event('skipped', s.id)
  decrement_left(1)
end

-- Starts or skips the steps to settle, and forces joins among them that wait for others.
function WORK.settle_all()
  while has_room() do
    local id = take('to_settle')
    if not id then return end
    local s = get(id)
    if s.state == 'waiting' and s.attempt == 0 and not was_settled[id] then
      if s.pending == 0 then settle(s) else force_join(s) end
    end
  end
  follow('settle_all')
end

-- Whether a step belongs to the run's own plan, or is an item of its maps, and not inside a team, an agent or a nested chain.
local function is_of_the_plan(spec) return not spec.scope or (spec.window and not string.find(spec.window, '/', 1, true)) end

-- Creates the functions of what follows from failures and stopped steps: few calls need them, and Lua takes as long to create them as for all of a short call.
local function define_failing()
  -- What was decoded of a field of a part of the run.
  local function decode(part, field)
    local key = part .. field
    if decoded[key] == nil then
      local text = redis.call('HGET', R .. part, field)
      decoded[key] = text and cjson.decode(text)
    end
    return decoded[key]
  end

  -- Reads specs and out-edges of steps; replies the latter as `edges_of` takes them.
  local function read_edges(ids)
    read_specs_of(ids)
    local texts = redis.call('HMGET', R .. ':edges', unpack(ids))
    for i, id in ipairs(ids) do texts[i] = new_edges[id] or texts[i] end
    return texts
  end

  -- Has all steps under a name be stopped, except the one that answers to it, the exit of its expansion.
  local function stop_name(name, exit)
    if name ~= exit then follow('stop_name', name, exit) end
  end

  function WORK.stop_name(name, exit)
    stop_name(redis.call('HGET', R .. ':names', name) or exit, exit)
    follow('resolve_stopped', exit)
    follow('stop_scope', name, exit, true, 1)
  end

  -- Fails the sources of a join from a place in their list on, which may be within a map.
  function WORK.fail_late(join, at, item)
    local source = (decode(':joins', join) or {})[at]
    if not source then return end
    local name = source
    if type(source) == 'table' then
      if item == 0 then redis.call('UNLINK', R .. ':backlog:' .. source.map) end
      name = source.prefix .. '/' .. item
      item = item + 1
      if item >= source.count then at, item = at + 1, 0 end
    else
      at = at + 1
    end
    follow('fail_late', join, at, item)
    local late = get(answering(name))
    if late and not OVER[late.state] then
      follow('fail', late.id, 'missed_deadline', '{"error":{"code":"missed_deadline","message":"did not answer in time"}}', false)
      stop_name(name, late.id)
    end
  end

  -- Keeps the signal that ended a wait which the code gave up before it received that: the next wait of its name gets it.
  local function pass_on(s)
    local spec, text = spec_of(s.id), redis.call('HGET', R .. ':info', s.id) or '{}'
    local info = cjson.decode(text)
    if s.state ~= 'done' or not repeats(spec) or info.timed_out or info.passed_on then return end
    edit_info(s.id, {passed_on = 'true'})
    local value, by, name = output_of(s.id), info.answered_by, string.match(s.id, '[^/]*$')
    keep_signal_first(name, by and value .. '\n' .. by or value)
    event('signal', name, nil, nil, by and cjson.encode({by = by}))
  end

  -- Stops a step that the code of a workflow gave up, with all that it grew.
  function WORK.give_up(name)
    local s = get(answering(name))
    if not s then return end
    if OVER[s.state] then return pass_on(s) end
    stop(s)
    table.insert(lists.stopped, s.id)
    follow('resolve_stopped', '')
    stop_name(name, s.id)
  end

  -- Stops the open steps that a parent added, except its exit and `except`, and all that those added; maps among them send no more items. Goes on from a
  -- place among them. `is_root`: the parent names the scope, and its steps belong to it only if it is scoped.
  function WORK.stop_scope(parent, except, is_root, at)
    local expansion = decode(':expansions', parent)
    if not expansion or (is_root and not expansion.scoped) then return end
    local ids, items = expansion.ids, expansion.items
    local count = #ids + (items and items.count or 0)
    if items then redis.call('UNLINK', R .. ':backlog:' .. parent) end
    while at <= count do
      if not has_room() then return follow('stop_scope', parent, except, is_root, at) end
      local chunk = {}
      for i = at, math.min(at + CHUNK - 1, count) do
        local id = ids[i] or items.prefix .. '/' .. (i - #ids - 1)
        local is_none = (items and id == items.like) or id == except or (is_root and id == expansion.exit)
        if not is_none then chunk[#chunk + 1] = id end
      end
      read_states(chunk)
      at = at + CHUNK
      local parents = {}
      for _, id in ipairs(chunk) do
        local s = get(id)
        if not s then
          -- Redis has lost it
        elseif s.state == 'done' then
          parents[#parents + 1] = id
        elseif not OVER[s.state] then
          stop(s)
          table.insert(lists.stopped, id)
        end
      end
      if #parents > 0 then
        follow('stop_scope', parent, except, is_root, at)
        for i, found in ipairs(redis.call('HMGET', R .. ':expansions', unpack(parents))) do
          if found then follow('stop_scope', parents[i], except, false, 1) end
        end
        return
      end
    end
  end

  -- Resolves the out-edges of stopped steps, except those to the exit of their scope: it fails in their place.
  function WORK.resolve_stopped(exit)
    local ids = {}
    while #ids < CHUNK do
      local id = take('stopped')
      if not id then break end
      ids[#ids + 1] = id
    end
    if #ids == 0 then return end
    follow('resolve_stopped', exit)
    for i, text in ipairs(read_edges(ids)) do
      local edges = edges_of(ids[i], text)
      if #edges > 1 or (edges[1] and edges[1][1] ~= exit) then follow('resolve_edges', ids[i], 'skipped', {}, exit, 1) end
    end
  end

  -- The step that fails if a scope fails: the scope's exit; if that is over, the exit of the enclosing scope; nil for the run. Names may have moved to a step
  -- inside, whose scope lies in this one again, so no scope is visited twice. `visit` is called with each scope on the way, and its exit.
  local function failure_target(scope, visit)
    local seen = {}
    while scope and not seen[scope] do
      seen[scope] = true
      local exit = get(answering(scope))
      local spec = spec_of(exit.id)
      if visit then visit(scope, exit.id) end
      if not OVER[exit.state] then return exit, spec end
      scope = spec.scope
    end
  end

  -- Whether a scope's failure ends the run: each step it reaches aborts.
  local function ends_run(scope)
    local seen = {}
    local exit, spec = failure_target(scope)
    while exit and not seen[exit.id] do
      if (spec.on_error or 'abort') ~= 'abort' then return false end
      seen[exit.id] = true
      exit, spec = failure_target(spec.scope)
    end
    return true
  end

  -- Fails a step for good. Its on_error says what follows: the next step, the edges for failure, the failure of its scope, or that of the run. If the run
  -- `ends`, no scope needs to be stopped.
  function fail(s, kind, info, ends)
    local spec = spec_of(s.id)
    store(':info', {s.id, info})
    event(kind, s.id, s.attempt, nil, info)
    local code = cjson.decode(info).error.code
    if code == 'budget' then -- no further call can be paid, whatever on_error says
      finish(s, 'failed')
      return close('exhausted', info)
    end
    local on_error = spec.on_error or 'abort'
    if kind ~= 'missed_deadline' and is_of_the_plan(spec) then redis.call('HINCRBY', R, 'failures', 1) end
    if on_error == 'skip' or kind == 'missed_deadline' then return resolve(s, 'failed', {done = true}, 'null') end
    if on_error == 'jump' then return resolve(s, 'failed', {failed = true}) end
    finish(s, 'failed')
    ends = ends or ends_run(spec.scope)
    local scopes = {}
    local exit = failure_target(spec.scope, function(scope, its_exit) table.insert(scopes, 1, {scope, its_exit}) end)
    if exit then
      follow('fail', exit.id, kind, info, ends)
      if not ends then follow('resolve_edges', s.id, 'failed', {}, exit.id, 1) end
    end
    for _, each in ipairs(ends and {} or scopes) do stop_name(each[1], each[2]) end
    if exit then
      if not ends then decrement_left(1) end
    elseif cancelling then
      decrement_left(1) -- other workflows clean up too
    else
      close(code == 'exhausted' and 'exhausted' or 'failed', info)
    end
  end

  function WORK.fail(id, kind, info, ends)
    local s = get(id)
    if not OVER[s.state] then fail(s, kind, info, ends) end
  end
end

fail = function(...)
  define_failing()
  return fail(...)
end

-- Parks a step that may or may not have had its effect, until a person decides.
local function park(s, owner)
  remove_entries(s)
  event('uncertain', s.id, s.attempt, owner)
  move(s, 'waiting_signal'); s.owner = '-'; put(s)
  await_person(s, spec_of(s.id))
  notify({'wait'}, s.id)
  update_deadline()
end

-- Does what follows from this call, as far as there is room. First all that is sure; then steps whose signal came early end, and then those of which no
-- in-edge was taken are skipped. Lists, not recursion: a sequence may have 10,000 steps. What is left is kept for later calls.
local function work_off()
  if unfinished and #work == 0 then
    work, roles_changed = cjson.decode(redis.call('GET', R .. ':unfinished')), true
  end
  while has_room() and OPEN[status] do
    local item = table.remove(work)
    if item then
      if not WORK[item[1]] then define_failing() end
      WORK[item[1]](unpack(item, 2))
    else
      local signal = take('signalled')
      local id, value, by = unpack(signal and cjson.decode(signal) or {take('to_skip')})
      if not id then
        if unfinished then finish_work() end
        return
      end
      local s = get(id)
      if OVER[s.state] then
        -- it was stopped meanwhile
      elseif signal then
        end_wait(s, value, by)
      else
        event('skipped', id)
        resolve(s, 'skipped', {})
      end
    end
  end
  if not OPEN[status] then return end
  for list, ids in pairs(lists) do push_all(R .. ':unfinished:' .. list, ids) end
  redis.call('SET', R .. ':unfinished', #work > 0 and cjson.encode(work) or '[]')
  redis.call('HSET', R, 'unfinished', 1)
  redis.call('ZADD', S .. ':unfinished', now + FINISH_MS, run)
  unfinished, work = '1', {}
  empty_lists()
end

-- Does what follows from this call, and marks the steps that it made ready as sent, except one that the caller begins at once: a decision, or the only
-- step, as `goes_ahead` says. None is begun while something is left to do: it might be stopped by that.
local function take_ready(resend_ms, ahead)
  work_off()
  local sends, checks, begun = {}, {}, false
  for _, item in ipairs(fresh) do
    local s, text, spec = item[1], item[2], item[3]
    if OVER[get(s.id).state] then
      -- it was late, or stopped, in the same call
    elseif ahead and not unfinished and not begun and (spec.decides or (#fresh == 1 and goes_ahead(spec, ahead))) then
      if ahead.executed == s.id then
        in_place = {id = s.id, owner = ahead.owner, waited = mark_begun(s, ahead.owner)}
        begun = {step = s.id}
      else
        begun = lease(s, ahead.owner, ahead.lease_ms)
      end
    else
      move(s, 'sent')
      s.owner = now_text
      put(s)
      checks[#checks + 1], checks[#checks + 2] = look_after(resend_ms), run .. '|' .. s.id
      sends[#sends + 1], sends[#sends + 2] = s.id, text
    end
  end
  for i = 1, #checks, 1000 do redis.call('ZADD', S .. ':ready', unpack(checks, i, math.min(i + 999, #checks))) end
  fresh = {}
  if not unfinished then update_deadline() end
  return sends, begun
end
