-- Behind charges.lua, the first part of every script of the ledger: the keys of a shard and of a run, and the run that the script is about.
-- steps.lua and lib.lua follow where they are needed. charges.lua has the keys that count what a tenant keeps.
--
-- Of a shard S:
--   S:leases    zset  run|attempt|owner|step -> when the lease runs out (ms)   lives while steps run
--   S:ready     zset  run|step -> when to check it if nobody began it; 0: it has no message        lives while steps wait for a worker
--   S:due       zset  timer|run|step -> when it fires (retry, wait, deadline, lives until it fires or its run ends
--                     join, remind, escalate, permit: check a step that waits for a rate limit)
--   S:asking    zset  run|step of a step that waits for a person -> since when (ms)   lives until the wait ends or its run ends
--   S:lost_steps list time|worker|run|step of steps that lost their worker, the last 100   expires 10 minutes after the last
--   S:left      list  run|step of steps that no longer wait for a rate limit   entries go with the next sweep
--   S:tasks     zset  run|attempt|step of a dispatched step -> when to look    lives until the outcome is recorded or the run ends
--                     for the result of its task
--   S:revoked   list  run|attempt|step of tasks whose result nobody needs      entries go with the next sweep
--   S:clearing  hash  ended run -> a part of it and a cursor: where to go on   entries go when all are removed
--                     removing the entries of its open steps
--   S:parked    hash  duty|item of an item of the sweep that failed ->         entries go when it is tried again or dropped, when its run or
--                     {tries, since, at (ms), error, version, place?, parked}   schedule is gone, and, unless parked, after ten minutes
--   S:unfinished zset run of which a call left work to later ones -> when a    entries go when it is done or the run ends
--                     sweep does it, if nobody else has (ms)
--   S:runs      zset  run -> when it was accepted                              entries go with their run
--   S:finished  zset  run -> when it expires                                   entries go with their run
--   S:ended:<batch>
--               list  runs of its rows that ended, for whoever feeds it          entries go when it reads them, or after ten minutes without another
--   S:totals    hash  accepted, closed:<status>, delivered:<status> (of runs that post to webhooks), lost, recovered, retried (runs), rows:<outcome> (delivered,
--                      of batches) -> how often it happened in this shard; batches:<state> -> how many are in it   lives for ever
--   S:outbox    zset  tenant -> when to create further runs that post for it (ms)   entries go with the last of S:outbox:<tenant>
--   S:outbox:<tenant>
--               list  what is to be posted for its runs, the oldest first: the     an entry goes when the last of its runs is created
--                     next of the posts and of the run's webhooks, from 1, and
--                     (JSON) {run, at, keep_ms, posts: [{events: of which the first that a webhook is for counts, status, step?, data?}, ...]}
--   S:posting:<tenant>
--               zset  open run that posts for it -> when it ends at the latest   entries go when the run ends, or that time is over
--   S:costs:<day>
--               hash  tenant -> cost (USD) of its model calls that ended on      expires after a month
--                     that day, in days since 1970, UTC
--   S:audit:*   streams of the audit log and their index, of one shard only (audit/append.lua)   expire after CANTATA_AUDIT_DAYS without another entry
--   S:sessions  zset  session -> when a turn of it was last accepted (ms)      entries go some time after nothing is kept of the session
--   S:sessions:<tenant>
--               zset  the same, of one tenant                                  likewise
--   S:schedules zset  schedule -> when to look at it (ms); inf: it is paused or over   entries go with their schedule
--   S:definitions:<sha256>
--               hash  text; runs: number of its open runs and of the schedules with them; until: when the last of its ended runs expires (ms)    expires then, if none needs it
-- Of a schedule T = S:schedule:<tenant>/<name>, whose runs all lie in its shard, which is that of its session, if its turns belong to one:
--   T            hash  spec, request, labels, offer of its runs, quota (JSON); timing: the part of the spec that decides its times; definitions; origin;
--                      next: its next time (ms); mark: changes with each change of the spec; paused, pause_note; fired, skipped, missed: counts of
--                      times; error: why the last look started no run; bytes: of the fields that `put` sets; created_at; skipped_ms: time that a test has skipped; grace_ms: the part
--                      of it for which the schedule is not late
--   T:pending    list  times that wait for their run (JSON): {at, labels?}                                        all live until it is deleted
--   T:runs       list  its last runs, the newest first: run|time
-- Of a session X = S:session:<tenant>/<name>, whose runs all lie in the session's shard:
--   X:queue     list  its open runs, the current one first                     lives while there are any
--   X:history   list  messages, one JSON text an entry                         expires after the session's retention, if no run is in the queue
-- Of a run R = S:run:<id>. No key expires while the run is open, since a Redis may evict what expires; then all expire together, after its retention:
--   R            hash   status, request, definitions, tenant, priority, session, counts, usage, error; traced: the root span is written;
--                       unpriced: model calls whose price is not known;
--                       code: the user code that its steps ran with, as lines of module@digest;
--                       used:<attempt>|<step>: the usage of a stopped attempt is counted;
--                       parts: number of the keys below that existed when it ended, without the logs;
--                       deadline_at, or time_left (ms) while its clock is paused; working, asking: steps under way, steps that wait for a signal or sleep;
--                       waits: its entries in S:asking. A running run is shown as `waiting` if it has some and its clock is paused;
--                       failures: steps of its plan, and items, that failed;
--                       retried_as: the newest run that retries it; refused: when a step of it was last refused (ms), and why (JSON), until one starts it;
--                       webhooks: [{to, on: {event: true}, alert?}, ...]; deliveries: the last number tried in the ids of the runs that post for it;
--                       outbox: entries in the outbox of its tenant; held: it has ended, and expires when there are none; max_deliveries: open runs
--                       that post for its tenant, beyond which further ones wait;
--                       cancelling: the error with which it ends when its workflows have cleaned up; cancelled:<step>: an advance whose code gets
--                       CancelledError
--   R:steps      hash   step -> its spec (JSON), or =<step> for the spec it shares
--   R:state      hash   step -> state attempt pending taken failures crashes quorum owner (of a sent or dispatched step: since when; of an ended
--                       step: > and the step that its commit began). An open step of an ended run counts as skipped
--   R:edges      hash   step -> its out-edges, [[target, label, wakes, alone?], ...]
--   R:out        hash   step -> its output (JSON text), or @<sha256> of a blob
--   R:info       hash   step -> how it ended (JSON); of a sleep under way, when it ends; of a wait, reminded_at_ms, escalated_at_ms,
--                      passed_on: the code gave it up when its signal had come, which the next wait of its name gets;
--                       refused: {process: why it refused the step}
--   R:given      hash   step -> its given value (JSON text)
--   R:names      hash   name -> the step that answers to it now
--   R:expansions hash   parent other than @start -> the steps it added, and what a fork restores: {ids, items?, exit?, scoped?, own?, counted?, names?, terminals?}
--   R:joins      hash   step with a quorum or deadline -> its sources; {map, prefix, count} for the items of a map
--   R:window     hash   map -> "size inflight"
--   R:backlog:*  list   of a map, the items not yet sent
--   R:unfinished string what a call left to later ones (JSON), `work` of lib.lua. Meanwhile the field `unfinished` of the run is 1, and the run takes no
--                       other call, so that no call sees or changes a half of what was decided
--   R:unfinished:to_settle, :stopped, :to_skip, :signalled   list, the `lists` of lib.lua
--   R:signals    hash   waiting step, or the end of its id -> the value of an early signal; in further lines its author, and if its step
--                       was not known: the groups that it may answer for, or *; `name\nN`: further ones for the same name
--   R:blobs      hash   sha256 -> text of a large output
--   R:log        stream of events; ids 0-1, 0-2, ...
--   R:logs       stream of the lines that workers logged for it, bounded; log_bytes and log_dropped of the run count the kept and the dropped
--   R:beat:<attempt>:<step> string  the last heartbeat of a user's task (s)   expires after its time limit
--   R:fork:<call>:* the parts of a fork that is being staged (forks/stage.lua)   expires after ten minutes
--   R:closed     stream with one entry when the run is over: what waiters block on

local redis = {call = redis.call, pcall = redis.pcall}
local calls = 0 -- commands of Redis that this script has called, if it counts them

local function count_calls()
  local call = redis.call
  redis.call = function(...)
    calls = calls + 1
    return call(...)
  end
end

local R, run, status, definitions, tenant, kind_of_run, session, time_left, priority, cancelling, used_code, batch, unfinished
local now_text = string.format('%d', now)

local MAX_RESEND_MS = 60000 -- until a sweep checks a step in a long queue again: a broker may have lost all its messages
local UNSENT = 0 -- in S:ready: only the next sweep sends this step
local NEW = 0.5 -- likewise, of a step that nobody has sent yet, since its process has no broker: it has waited in no queue

-- When a sweep looks at a step that is marked as sent now, if nobody has begun it by then. 0: the caller sends nothing, the next sweep does.
local function look_after(resend_ms) return resend_ms == 0 and NEW or now + resend_ms end

local SOON = 1000 -- ms until a sweep checks whether the next run of a session was begun: not every process that ends a run sends what follows

local COSTS_S = 32 * 86400 -- for which the costs of a day can be read
local MAX_MESSAGE_BYTES = 32768 -- of a conversation; longer ones are cut
local CLEARED = 200 -- steps of an ended run whose entries one call removes
local ENDED_S = 600 -- for which the last ended rows of a batch can be read without looking at each; afterwards they are found more slowly
local TRIMMED = 20 -- old sessions that one turn checks for those of which nothing is kept
local SHARDS = 64
local RUN_BYTES = 3000  -- of a run beside its texts: its keys, the fields that every run has, its streams, entries in lists of the shard
local STEP_BYTES = 600  -- of a step beside its texts: its state, the events that every step has, entries in lists of the shard
local EVENT_BYTES = 60  -- of another event beside its detail
local POSTS_AN_ENTRY = 50 -- events in one entry of the outbox: it is decoded once for each call that creates runs for it
local DELIVERY_MS = 25 * 3600 * 1000 -- the longest time of a run that posts to a webhook; its step gives up after 24 hours

local OPEN = {accepted = true, running = true}

local following = {}  -- first steps of the next runs of sessions: run, priority, step, spec text, ...
local specs = {}      -- decoded specs, by text
local read_specs = {} -- what spec_of replied, by id
local shared_edges = {} -- out-edges that items of a map share, by the id of their common spec
local states = {}     -- packed states of steps that this call read or put, by id
local unwritten = {}  -- those that write_changes is to write: {id, ..., [id] = true}
local outputs = {}    -- outputs that this call wrote or read, as R:out has them, by id
local new_edges = {}  -- out-edges (JSON) of steps that this call added, by id
local posts = {}      -- events of the run, to be posted to its webhooks, that write_changes is to write to the outbox
local has_posts = 0   -- 1 if it wrote some

local COUNTS = {'left', 'count', 'bytes', 'working', 'asking', 'tool_calls'}
local counts = {left = 0, count = 0, bytes = 0, working = 0, asking = 0, tool_calls = 0} -- these numbers of the run, as this call has left them
local changed = {left = false, bytes = false, working = false, tool_calls = false} -- {[field] = true} of those that write_changes is to write
local known_bytes     -- the bytes of the run that are counted for its tenant
local in_place        -- {id, owner, waited} of an advance that was executed before this call begins it: it has no lease, and its end is its only event
local roles_changed   -- a step began or stopped to be under way, or to wait for a person, since update_deadline was called
local write_changes

-- What follows is one function, to the end of the script behind this prelude: Lua creates each function anew in every call, and then finds the
-- variables above in two thirds of the time. Behind its end stand: write_changes() return reply
local reply = (function()

-- Sets fields of a hash: {field, value, ...}.
local function hset_all(key, flat)
  for i = 1, #flat, 1000 do redis.call('HSET', key, unpack(flat, i, math.min(i + 999, #flat))) end
end

-- Adds n, which may be negative, to one of the COUNTS.
local function increase(field, n)
  counts[field] = counts[field] + n
  changed[field] = true
end

-- Sets fields of a hash of the run, as hset_all, and counts their bytes.
local function store(part, flat)
  local bytes = 0
  for i = 1, #flat do bytes = bytes + #flat[i] end
  increase('bytes', bytes)
  hset_all(R .. part, flat)
end

-- Fields of a hash, in order; false for one that it does not have.
local function hmget_all(key, names)
  local found = {}
  for first = 1, #names, 1000 do
    for _, value in ipairs(redis.call('HMGET', key, unpack(names, first, math.min(first + 999, #names)))) do found[#found + 1] = value end
  end
  return found
end

local function use(run_id)
  local used = run
  if used then write_changes() end
  run, R = run_id, S .. ':run:' .. run_id
  local known = redis.call('HMGET', R, 'status', 'definitions', 'tenant', 'kind', 'session', 'time_left', 'priority', 'cancelling', 'code', 'batch',
    'unfinished', unpack(COUNTS))
  status, definitions, tenant, kind_of_run, session = known[1], known[2], known[3], known[4], known[5]
  time_left, priority = tonumber(known[6] or nil), tonumber(known[7] or 0)
  cancelling, used_code, batch, unfinished = OPEN[status] and known[8] or nil, known[9], known[10], known[11]
  for i, field in ipairs(COUNTS) do counts[field] = tonumber(known[11 + i] or 0) end
  known_bytes, roles_changed = counts.bytes, false
  if used then read_specs, shared_edges, states, outputs, new_edges = {}, {}, {}, {}, {} end
end

local function meta(field) return redis.call('HGET', R, field) end

-- Records the bytes of an ended run, to be subtracted when it expires.
local function record_size()
  local bytes, log_bytes = unpack(redis.call('HMGET', R, 'bytes', 'log_bytes'))
  redis.call('HSET', S .. ':sizes', run, (bytes or 0) .. ' ' .. (log_bytes or 0) .. ' ' .. tenant)
end

-- Writes the states and counts that this call changed, each once however often it changed. Called at the end of each script, and before another run is
-- used, the run is closed, or its states are read elsewhere.
write_changes = function()
  local flat = {}
  for field, is_changed in pairs(changed) do
    if is_changed then flat[#flat + 1], flat[#flat + 2], changed[field] = field, counts[field], false end
  end
  if #flat > 0 then
    redis.call('HSET', R, unpack(flat))
    count('bytes', tenant, counts.bytes - known_bytes)
    if counts.bytes ~= known_bytes and not OPEN[status] then record_size() end
    known_bytes = counts.bytes
  end
  if #posts > 0 then
    flat = {}
    for i = 1, #posts, POSTS_AN_ENTRY do
      local some = {unpack(posts, i, math.min(i + POSTS_AN_ENTRY - 1, #posts))}
      local entry = cjson.encode({run = run, at = now, keep_ms = redis.call('HGET', R, 'retention_ms'), posts = some})
      flat[#flat + 1] = '1 1 ' .. entry
      count('bytes', tenant, #entry)
    end
    redis.call('RPUSH', S .. ':outbox:' .. tenant, unpack(flat))
    redis.call('ZADD', S .. ':outbox', 'NX', now, tenant)
    redis.call('HINCRBY', R, 'outbox', #flat)
    posts, has_posts = {}, 1
  end
  if #unwritten == 0 then return end
  flat = {}
  for _, id in ipairs(unwritten) do flat[#flat + 1] = id; flat[#flat + 1] = states[id] end
  unwritten = {}
  hset_all(R .. ':state', flat)
end

-- The name of an owner's process: an owner is that, ~ and a mark of the process's start, ~ and a mark of the call.
local function worker_of(owner) return string.match(owner, '^[^~]*') end

-- Events that every run or step has, which are in RUN_BYTES and STEP_BYTES.
local USUAL = {accepted = true, started = true, done = true, skipped = true, expanded = true, closed = true}

local function event(kind, step, attempt, owner, detail)
  if status and not USUAL[kind] then increase('bytes', EVENT_BYTES + #(detail or '')) end
  if in_place and in_place.id == step then owner = in_place.owner end
  local worker = owner and worker_of(owner) or ''
  redis.call('XADD', R .. ':log', '0-*', 't', kind, 's', step or '', 'a', attempt or '', 'w', worker, 'at', now_text, 'd', detail or '')
end

-- Adds a usage to the run's: {field: number, cost_usd: text; none if the price is not known}, or nil for none.
local function add_usage(usage)
  if usage and usage.model_calls and not usage.cost_usd then redis.call('HINCRBY', R, 'unpriced', usage.model_calls) end
  for field, n in pairs(usage or {}) do
    if counts[field] then increase(field, n) else redis.call(field == 'cost_usd' and 'HINCRBYFLOAT' or 'HINCRBY', R, field, n) end
    if field == 'cost_usd' then
      local key = S .. ':costs:' .. math.floor(now / 86400000)
      redis.call('HINCRBYFLOAT', key, tenant, n)
      redis.call('EXPIRE', key, COSTS_S)
    end
  end
end

-- Sets the packed state of a step.
local function set_state(id, packed)
  states[id] = packed
  if not unwritten[id] then unwritten[#unwritten + 1], unwritten[id] = id, true end
end

-- The spec of a step: decoded, as text, and the id it is shared under. `text` is that of R:steps, if it was read already.
local function spec_of(id, text)
  local known = read_specs[id]
  if not known then
    text = text or redis.call('HGET', R .. ':steps', id)
    if not text then return end -- no such step
    if string.sub(text, 1, 1) == '=' then
      known = {spec_of(string.sub(text, 2))}
    else
      if not specs[text] then specs[text] = cjson.decode(text) end
      known = {specs[text], text, id}
    end
    read_specs[id] = known
  end
  return known[1], known[2], known[3]
end

-- The step that answers to a name now: expansions and loops move names. `visit` is called with each name on the way.
local function answering(name, visit)
  for _ = 1, 100000 do
    if visit then visit(name) end
    local next_name = redis.call('HGET', R .. ':names', name)
    if not next_name then return name end
    name = next_name
  end
  error('names of run ' .. run .. ' form a cycle at ' .. name)
end

-- The steps that answer to some names now, in order: a command for each time that one of them was moved, whatever their number.
local function answering_all(names)
  local found, open = {}, {}
  for i, name in ipairs(names) do found[i], open[i] = name, i end
  for _ = 1, 100000 do
    if #open == 0 then return found end
    local asked, moved = {}, {}
    for i, at in ipairs(open) do asked[i] = found[at] end
    for i, next_name in ipairs(hmget_all(R .. ':names', asked)) do
      if next_name then found[open[i]], moved[#moved + 1] = next_name, open[i] end
    end
    open = moved
  end
  error('names of run ' .. run .. ' form a cycle')
end

-- The output of a step as JSON text.
local function output_of(id)
  local out = outputs[id] or redis.call('HGET', R .. ':out', id)
  if out and string.sub(out, 1, 1) == '@' then out = redis.call('HGET', R .. ':blobs', string.sub(out, 2)) end
  return out or 'null'
end

-- The out-edges of a step. `text` is that of R:edges, if it was read already.
local function edges_of(id, text)
  if text == nil then text = new_edges[id] or redis.call('HGET', R .. ':edges', id) end
  if text then return cjson.decode(text) end
  local _, _, shared = spec_of(id)
  if shared and shared ~= id and shared_edges[shared] == nil then
    text = redis.call('HGET', R .. ':edges', shared)
    shared_edges[shared] = text and cjson.decode(text)
  end
  return shared_edges[shared] or {}
end

-- The outputs of what a step reads, {name, output, ...}: a few commands, whatever their number.
local function read_many(reads)
  local values, steps, names, places = {}, {}, {}, {}
  for name, ref in pairs(reads) do
    values[#values + 1], values[#values + 2] = name, false
    if string.sub(ref, 1, 1) == '=' then
      steps[#values / 2] = string.sub(ref, 2)
    else
      names[#names + 1], places[#places + 1] = ref, #values / 2
    end
  end
  for i, step in ipairs(answering_all(names)) do steps[places[i]] = step end
  local unread, large, digests = {}, {}, {}
  for i = 1, #values / 2 do
    if outputs[steps[i]] == nil then unread[#unread + 1] = steps[i] end
  end
  for i, text in ipairs(hmget_all(R .. ':out', unread)) do outputs[unread[i]] = text or 'null' end
  for i = 1, #values / 2 do
    local text = outputs[steps[i]]
    if string.sub(text, 1, 1) == '@' then large[#large + 1], digests[#digests + 1] = 2 * i, string.sub(text, 2) end
    values[2 * i] = text
  end
  for i, text in ipairs(hmget_all(R .. ':blobs', digests)) do values[large[i]] = text or 'null' end
  return values
end

local FEW_READS = 4 -- outputs, which are read one by one

-- The same, for a few the quicker way.
local function read_values(reads)
  local values, count = {}, 0
  for name, ref in pairs(reads) do
    count = count + 1
    if count > FEW_READS then return read_many(reads) end
    values[#values + 1] = name
    values[#values + 1] = output_of(string.sub(ref, 1, 1) == '=' and string.sub(ref, 2) or answering(ref))
  end
  return values
end

-- A reply with the names of its values: {name, value, ...}, without those that are nil.
local function named(fields)
  local reply = {}
  for name, value in pairs(fields) do reply[#reply + 1] = name; reply[#reply + 1] = value end
  return reply
end

-- What a step's handler gets, by name.
local function handler_inputs(s)
  local spec, text = spec_of(s.id)
  local values = read_values(spec.reads or {})
  if spec.kind == 'run.start' then
    values[#values + 1] = '@request'; values[#values + 1] = meta('request')
  end
  if cancelling and redis.call('HEXISTS', R, 'cancelled:' .. s.id) == 1 then
    values[#values + 1] = '@cancelled'; values[#values + 1] = 'true'
  end
  local given = spec.has_given and redis.call('HGET', R .. ':given', s.id)
  return {
    step = s.id, attempt = s.attempt, spec = text, given = given or nil, failures = s.failures, inputs = values, definitions = definitions,
    tenant = tenant, run_kind = kind_of_run, session = session or nil, priority = priority,
  }
end

-- Whether the caller begins the only step that it made ready: it is cheap and of the caller's queue, or in a row of a batch, whose steps nobody waits for
-- one by one, just of that queue; a function that the caller calls for its model; or the next round of that model.
local function goes_ahead(spec, ahead)
  if spec.queue ~= ahead.queue then return spec.kind == 'tool.call' and spec.work == ahead.tool end
  if spec.cheap ~= nil then return spec.cheap or (ahead.rounds and spec.kind == 'agent.turn') end
  return spec.work and (batch or string.find(ahead.cheap, '\n' .. spec.work .. '\n', 1, true))
end

-- The size of a map's window, and how many of its items are under way; nil if it has none.
local function window_of(map)
  local size, inflight = string.match(redis.call('HGET', R .. ':window', map) or '', '^(%d+) (%d+)$')
  return tonumber(size), tonumber(inflight)
end

-- How many items are under way when further ones are sent: a quarter of a wide window at a time.
local function refilled_at(size) return size < 32 and size - 1 or math.floor(size * 3 / 4) end
