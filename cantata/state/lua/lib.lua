-- Put before every script: how a run lies in Redis, and the moves that its steps may make.
-- KEYS[1] = {shard prefix}, for example cantata:{17}; every other key is built from it, so one call stays in one slot.
--
-- Of a shard S:
--   S:leases    zset  run|attempt|owner|step -> when the lease runs out (ms)   lives while steps run
--   S:ready     zset  run|step -> when to look after it if nobody began it; 0: it has no message   lives while steps wait for a worker
--   S:due       zset  what|run|step -> when (retry, wait, deadline, join,     lives until it fires or its run ends
--                     permit: to look for one that waits for a model's limits)
--   S:left      list  run|step of those that wait for limits no more           entries go with the next sweep
--   S:clearing  hash  run that is over -> where to go on forgetting what its   entries go when nothing of it is left to forget
--                     open steps waited for: a part of it and a cursor
--   S:runs      zset  run -> when it was accepted                              entries go with their run
--   S:finished  zset  run -> when it expires                                   entries go with their run
--   S:tenants   hash  tenant -> how many of its runs are not over              entries go with their last run
--   S:bytes     hash  tenant -> bytes of requests, outputs and log lines of     entries go with its last run
--                     its runs that are kept
--   S:log_bytes hash  tenant -> the part of that which are log lines           likewise
--   S:signals   hash  tenant -> signals that its open runs keep                entries go with its last open run
--   S:sizes     hash  run that is over -> its bytes, those of its log lines,   entries go with their run
--                     and its tenant
--   S:totals    hash  what happened here -> how often: accepted, closed:<status>, lost, recovered      lives for ever
--   S:sessions  zset  session -> when a turn of it was last taken in (ms)      entries go some time after nothing is kept of the session
--   S:sessions:<tenant>
--               zset  the same, of one tenant                                  likewise
--   S:definitions:<sha256>
--               hash  text; runs: how many of its runs are not over; until: when the last of them that is over expires (ms)    expires then, if none is open
-- Of a session X = S:session:<tenant>/<name>, in whose shard all its runs are:
--   X:queue     list  its runs that are not over, the one under way first      lives while there are any
--   X:history   list  what was said, one JSON text an entry                    expires when the session's retention is over, if no run is in the queue
-- Of a run R = S:run:<id>; none expires while the run is open, since a Redis may evict what expires; then all do together, after its retention:
--   R           hash   status, request, definitions, tenant, priority, session, counts, usage, error; traced: its trace has its root;
--                      code: the user code that its steps ran with, as lines of module@digest;
--                      used:<attempt>|<step>: the usage of an attempt that was stopped is counted;
--                      parts: how many of the keys below it had when it ended, without the logs
--                      deadline_at, or time_left (ms) while its clock stands still; working, asking: steps under way, steps that wait for a person;
--                      failures: steps of its plan, and items, that failed
--   R:steps     hash   step -> its spec (JSON), or =<step> for the spec it shares
--   R:state     hash   step -> word attempt pending taken failures crashes quorum owner (of a sent step: when it was sent; of one that is
--                      over: > and the step that its commit began). Of a run that is over, a step that is not counts as skipped
--   R:edges     hash   step -> its out-edges, [[target, label, wakes], ...]
--   R:out       hash   step -> its output (JSON text), or @<sha256> of a blob
--   R:info      hash   step -> how it ended (JSON)
--   R:given     hash   step -> the value it was given (JSON text)
--   R:names     hash   name -> the step that answers to it now
--   R:expansions     hash   parent other than @start -> what it grew, and what a fork takes back: {ids, items?, exit?, scoped?, own?, counted?, names?, terminals?}
--   R:joins     hash   step with a quorum or deadline -> its sources; {map, prefix, count} for the items of a map
--   R:window    hash   map -> "size inflight"
--   R:backlog:* list   of a map, the items not yet sent
--   R:signals   hash   waiting step, or the end of its id -> the value that came for it
--   R:blobs     hash   sha256 -> text of a large output
--   R:log       stream of events; ids 0-1, 0-2, ...
--   R:logs      stream of the lines that workers logged for it, bounded; the run's log_bytes and log_dropped tell what it holds and let go
--   R:fork:<call>:* what a fork takes over, as the parts of a run, until it is made (lua/stage.lua)   expires after ten minutes
--   R:closed    stream with one entry when the run is over: what waiters block on

local S = KEYS[1]
local R, run, status, definitions, tenant, kind_of_run, session, asking, time_left
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local MAX_RESEND_MS = 60000 -- until a sweep looks again after a step in a long queue: a broker may have lost all its messages
local UNSENT = 0 -- in S:ready: nobody sends this step but the next sweep
local SOON = 1000 -- ms until a sweep looks whether a run whose turn came was begun: not everyone who ends a run sends what follows

local CLEARED = 200 -- steps of a run that is over that one call looks at
local TRIMMED = 20 -- old sessions that a turn looks through for those of which nothing is kept

local OPEN = {accepted = true, running = true}
local OVER = {done = true, failed = true, skipped = true}
local MOVES = {
  new            = {waiting = true},
  waiting        = {ready = true, sent = true, running = true, waiting_signal = true, failed = true, skipped = true},
  ready          = {sent = true, running = true, waiting_signal = true, failed = true, skipped = true},
  sent           = {sent = true, running = true, failed = true, skipped = true},
  running        = {done = true, failed = true, skipped = true, waiting = true, sent = true, waiting_signal = true},
  waiting_signal = {done = true, failed = true, skipped = true},
}
local KEPT_KEYS = {'', ':steps', ':state', ':edges', ':out', ':info', ':given', ':names', ':expansions', ':blobs', ':log', ':logs', ':closed'}

local fresh = {}      -- steps made ready by this call, in order: {step, spec text, spec}
local settled = {}    -- steps whose in-edges need no more
local ended = {}      -- steps that ended, though a list here may name them
local unasked = {}    -- steps whose in-edges are resolved and none was taken: to be skipped
local answered = {}   -- steps that wait for a signal which came before them: {step, value}
local over_now = {}   -- runs that ended in this call
local following = {}  -- first steps of runs whose turn came in this call: run, priority, step, spec text, ...
local specs = {}      -- decoded specs of this call, by text

local moved = {working = 0, asking = 0}  -- by how much this call changed these counts of the run

local function use(run_id)
  run, R = run_id, S .. ':run:' .. run_id
  local known = redis.call('HMGET', R, 'status', 'definitions', 'tenant', 'kind', 'session', 'asking', 'time_left')
  status, definitions, tenant, kind_of_run, session = known[1], known[2], known[3], known[4], known[5]
  asking, time_left = tonumber(known[6] or 0), tonumber(known[7] or nil)
  moved.working, moved.asking = 0, 0
end

local function meta(field) return redis.call('HGET', R, field) end

local function tally(what) redis.call('HINCRBY', S .. ':totals', what, 1) end

-- Adds to what a tenant has in this shard: tenants (open runs), bytes, log_bytes or signals; negative: that go.
local function count(what, of_tenant, n)
  if n ~= 0 and redis.call('HINCRBY', S .. ':' .. what, of_tenant, n) <= 0 then redis.call('HDEL', S .. ':' .. what, of_tenant) end
end

-- Counts one more open run of a tenant. The more are under way, the later a run has its turn. A tenant's runs lie in all shards alike, save those of one
-- session, so each shard counts its own.
local function priority_among(of_tenant)
  local open = redis.call('HINCRBY', S .. ':tenants', of_tenant, 1)
  return open <= 1 and 0 or open <= 4 and 3 or open <= 16 and 6 or 9
end

-- Notes what a run that is over takes, for when it expires.
local function note_size()
  local bytes, log_bytes = unpack(redis.call('HMGET', R, 'bytes', 'log_bytes'))
  redis.call('HSET', S .. ':sizes', run, (bytes or 0) .. ' ' .. (log_bytes or 0) .. ' ' .. tenant)
end

local function keep(n)
  count('bytes', tenant, n)
  redis.call('HINCRBY', R, 'bytes', n)
  if not OPEN[status] then note_size() end
end

-- An owner is the name of a process, then what tells its lives and its calls apart; people are shown the name.
local function worker_of(owner) return string.match(owner, '^[^~]*') end

local function event(kind, step, attempt, owner, detail)
  local worker = owner and worker_of(owner) or ''
  redis.call('XADD', R .. ':log', '0-*', 't', kind, 's', step or '', 'a', attempt or '', 'w', worker, 'at', now, 'd', detail or '')
end

-- Adds what was used to the run's usage: "in,out,cost,model,tool", or "" for nothing.
local function add_usage(text)
  if text == '' then return end
  local tokens_in, tokens_out, cost, model_calls, tool_calls = string.match(text, '^(.-),(.-),(.-),(.-),(.-)$')
  local counts = {input_tokens = tokens_in, output_tokens = tokens_out, model_calls = model_calls, tool_calls = tool_calls}
  for field, count in pairs(counts) do
    if count ~= '0' then redis.call('HINCRBY', R, field, count) end
  end
  if cost ~= '' then redis.call('HINCRBYFLOAT', R, 'cost_usd', cost) end
end

-- The same for an attempt whose outcome does not count, since its step was stopped: once, however often it is told.
local function add_usage_once(step, attempt, text)
  if text ~= '' and redis.call('HSETNX', R, 'used:' .. attempt .. '|' .. step, 1) == 1 then add_usage(text) end
end

-- What a step is to the clock of its run; nil if it only waits for others, or is over.
local function role(s)
  if s.word == 'waiting_signal' then return 'asking' end
  if s.word == 'sent' or s.word == 'running' or (s.word == 'waiting' and s.attempt > 0) then return 'working' end
end

local function parse(id, packed)
  local word, attempt, pending, taken, failures, crashes, quorum, owner =
    string.match(packed, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  local s = {id = id, word = word, attempt = tonumber(attempt), pending = tonumber(pending), taken = tonumber(taken),
             failures = tonumber(failures), crashes = tonumber(crashes), quorum = tonumber(quorum), owner = owner}
  s.role = role(s)
  return s
end

local function get(id)
  local packed = redis.call('HGET', R .. ':state', id)
  local s = packed and parse(id, packed) or nil
  if s and not OPEN[status] and not OVER[s.word] then s.word, s.owner = 'skipped', '-' end
  return s
end

local function put(s)
  local new_role = role(s)
  if new_role ~= s.role then
    if s.role then moved[s.role] = moved[s.role] - 1 end
    if new_role then moved[new_role] = moved[new_role] + 1 end
    s.role = new_role
  end
  redis.call('HSET', R .. ':state', s.id, s.word .. ' ' .. s.attempt .. ' ' .. s.pending .. ' ' .. s.taken .. ' ' ..
    s.failures .. ' ' .. s.crashes .. ' ' .. s.quorum .. ' ' .. s.owner)
end

local function move(s, word)
  if not MOVES[s.word] or not MOVES[s.word][word] then
    error('step ' .. s.id .. ' of run ' .. run .. ' cannot go from ' .. s.word .. ' to ' .. word)
  end
  s.word = word
end

-- The spec of a step as text, the id it is shared under, and decoded.
local function spec_of(id)
  local text = redis.call('HGET', R .. ':steps', id)
  local shared = id
  if string.sub(text, 1, 1) == '=' then
    shared = string.sub(text, 2)
    text = redis.call('HGET', R .. ':steps', shared)
  end
  local spec = specs[text]
  if not spec then spec = cjson.decode(text); specs[text] = spec end
  return text, shared, spec
end

-- The step that answers to a name now: growth and loops move names.
local function answering(name)
  for _ = 1, 100000 do
    local next_name = redis.call('HGET', R .. ':names', name)
    if not next_name then return name end
    name = next_name
  end
  error('names of run ' .. run .. ' go in a circle at ' .. name)
end

-- The output of a step as JSON text.
local function output_of(id)
  local out = redis.call('HGET', R .. ':out', id)
  if out and string.sub(out, 1, 1) == '@' then out = redis.call('HGET', R .. ':blobs', string.sub(out, 2)) end
  return out or 'null'
end

local function edges_of(id)
  local text = redis.call('HGET', R .. ':edges', id)
  if not text then
    local _, shared = spec_of(id)
    text = shared ~= id and redis.call('HGET', R .. ':edges', shared)
  end
  return text and cjson.decode(text) or {}
end

local function lease_of(s) return run .. '|' .. s.attempt .. '|' .. s.owner .. '|' .. s.id end

local function forget(s)
  if s.word == 'running' then redis.call('ZREM', S .. ':leases', lease_of(s))
  elseif s.word == 'sent' then redis.call('ZREM', S .. ':ready', run .. '|' .. s.id)
  elseif s.word == 'waiting_signal' then redis.call('ZREM', S .. ':due', 'wait|' .. run .. '|' .. s.id)
  elseif s.word == 'waiting' then
    if s.attempt > 0 then
      redis.call('ZREM', S .. ':due', 'retry|' .. run .. '|' .. s.id)
      if redis.call('ZREM', S .. ':due', 'permit|' .. run .. '|' .. s.id) == 1 then redis.call('RPUSH', S .. ':left', run .. '|' .. s.id) end
    end
    redis.call('ZREM', S .. ':due', 'join|' .. run .. '|' .. s.id)
  end
end

local function conversation_of(name) return S .. ':session:' .. name end

-- A text of at most 32 kB, cut between two characters.
local function shortened(text)
  local most = 32768
  if #text <= most then return text end
  while most > 0 and string.byte(text, most + 1) >= 128 and string.byte(text, most + 1) < 192 do most = most - 1 end
  return string.sub(text, 1, most) .. '…'
end

-- Writes down what was said in a run of a session: what the user said, and what was answered or why nothing was.
local function remember(word, error_json)
  local kept = redis.call('HMGET', R, 'session_entries', 'request', 'terminals')
  local history = conversation_of(session) .. ':history'
  local function add(role, content, agent)
    if content == '' then return end
    redis.call('RPUSH', history, cjson.encode({role = role, content = shortened(content), agent = agent, ts = now / 1000, run_id = run}))
  end
  add('user', cjson.decode(kept[2]).text)
  if word == 'succeeded' then
    local terminals = cjson.decode(kept[3])
    local last = answering(terminals[#terminals])
    local out = output_of(last)
    local _, _, spec = spec_of(last)
    add('assistant', string.sub(out, 1, 1) == '"' and cjson.decode(out) or out, string.match(spec.work or '', '^agents:(.*)$'))
  else
    add('system_error', cjson.decode(error_json).error.message)
  end
  redis.call('LTRIM', history, -tonumber(kept[1]), -1)
end

-- Marks a step as sent; if nobody begins it, a sweep looks after it. Its owner is meanwhile the time it was sent.
local function mark_sent(s, resend_ms)
  move(s, 'sent')
  s.owner = string.format('%d', now)
  put(s)
  redis.call('ZADD', S .. ':ready', now + resend_ms, run .. '|' .. s.id)
end

-- A run's clock stands still while a step waits for a person and none is under way, and while the run waits for its turn in a session.
-- Called at the end of whatever changes steps.
local function keep_time()
  if not OPEN[status] then return end
  if moved.working ~= 0 then redis.call('HINCRBY', R, 'working', moved.working) end
  if moved.asking ~= 0 then asking = redis.call('HINCRBY', R, 'asking', moved.asking) end
  local has_moved = moved.working ~= 0 or moved.asking ~= 0
  moved.working, moved.asking = 0, 0
  if not has_moved or (asking == 0 and not time_left) then return end
  local timer = 'deadline|' .. run .. '|'
  local is_parked = asking > 0 and tonumber(meta('working') or 0) == 0
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

-- Gives the first run in the queue of a session its turn.
local function start_next(queue)
  local id = redis.call('LINDEX', queue, 0)
  if not id then return end
  local ended_run = run
  use(id)
  if status ~= 'accepted' then return use(ended_run) end
  mark_sent(get('@start'), SOON)
  keep_time()
  for _, item in ipairs({run, tonumber(meta('priority')), '@start', (spec_of('@start'))}) do following[#following + 1] = item end
  use(ended_run)
end

-- Those of the tenant in a session's name.
local function sessions_of(name) return S .. ':sessions:' .. string.match(name, '^[^/]*') end

-- Lets a run wait its turn in its session; replies its place, from 1.
local function join_queue(name, keep_ms)
  local aged = redis.call('ZCOUNT', S .. ':sessions', '-inf', now - keep_ms)
  local from = aged > TRIMMED and now % (aged - TRIMMED + 1) or 0 -- anywhere among them: the oldest may be kept for years
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', S .. ':sessions', '-inf', now - keep_ms, 'LIMIT', from, TRIMMED)) do
    if redis.call('EXISTS', conversation_of(old) .. ':queue', conversation_of(old) .. ':history') == 0 then -- others are kept longer
      redis.call('ZREM', S .. ':sessions', old)
      redis.call('ZREM', sessions_of(old), old)
    end
  end
  redis.call('ZADD', S .. ':sessions', now, name)
  redis.call('ZADD', sessions_of(name), now, name)
  redis.call('PERSIST', conversation_of(name) .. ':history')
  local queue = conversation_of(name) .. ':queue'
  local head = redis.call('LINDEX', queue, 0)
  while head and not OPEN[redis.call('HGET', S .. ':run:' .. head, 'status')] do -- it was ended by a worker that is too old for sessions
    redis.call('LPOP', queue)
    start_next(queue)
    head = redis.call('LINDEX', queue, 0)
  end
  return redis.call('RPUSH', queue, run)
end

-- A run of a session is over: what was said is written down, and the next one has its turn.
local function leave_queue(word, error_json)
  local queue = conversation_of(session) .. ':queue'
  local had_its_turn = redis.call('LINDEX', queue, 0) == run
  redis.call('LREM', queue, 1, run)
  if not had_its_turn then return end
  remember(word, error_json)
  start_next(queue)
  if redis.call('EXISTS', queue) == 0 then redis.call('PEXPIRE', conversation_of(session) .. ':history', meta('session_keep_ms')) end
end

-- An open run holds its definitions: they do not expire.
local function hold_definitions(digest)
  local key = S .. ':definitions:' .. digest
  redis.call('HINCRBY', key, 'runs', 1)
  redis.call('PERSIST', key)
end

-- A run that is over keeps them for as long as it is kept itself, since it may be forked.
local function release_definitions(keep_ms)
  local key = S .. ':definitions:' .. definitions
  local last = string.format('%.0f', math.max(now + keep_ms, tonumber(redis.call('HGET', key, 'until')) or 0))
  redis.call('HSET', key, 'until', last)
  if redis.call('HINCRBY', key, 'runs', -1) <= 0 then redis.call('PEXPIREAT', key, last) end
end

-- What only open runs need goes, and the rest of a run that is over expires after its retention.
local function let_expire()
  redis.call('UNLINK', R .. ':joins', R .. ':window', R .. ':signals')
  local keep_ms = meta('retention_ms') or 1 -- a run that somebody deleted
  for _, key in ipairs(KEPT_KEYS) do redis.call('PEXPIRE', R .. key, keep_ms) end
end

-- Forgets what the open steps of a run that is over waited for, a piece a call; until then it does not expire. `place` is as in S:clearing.
local function clear(place)
  local part, at = string.match(place, '^(%S+) (%d+)$')
  local cursor, cells = unpack(redis.call('HSCAN', R .. part, at, 'COUNT', CLEARED))
  for i = 1, #cells, 2 do
    if part == ':window' then
      redis.call('UNLINK', R .. ':backlog:' .. cells[i])
    else
      local s = parse(cells[i], cells[i + 1])
      if not OVER[s.word] then forget(s) end
    end
  end
  if cursor ~= '0' then
    redis.call('HSET', S .. ':clearing', run, part .. ' ' .. cursor)
  elseif part == ':window' then
    clear(':state 0')
  else
    redis.call('HDEL', S .. ':clearing', run)
    let_expire()
  end
end

-- Ends the run: its open steps count as skipped, and it is kept for its retention.
local function close(word, error_json)
  redis.call('HSET', R, 'status', word, 'closed_at', now, 'error', error_json or '')
  status = word
  over_now[#over_now + 1] = run
  redis.call('ZREM', S .. ':due', 'deadline|' .. run .. '|')
  count('tenants', tenant, -1)
  count('signals', tenant, -redis.call('HLEN', R .. ':signals'))
  tally('closed:' .. word)
  event('closed', nil, nil, nil, '{"status":"' .. word .. '","failures":' .. (meta('failures') or 0) .. '}')
  redis.call('XADD', R .. ':closed', '0-1', 'status', word)
  note_size()
  local keep_ms = tonumber(meta('retention_ms'))
  local parts = {}
  for _, key in ipairs(KEPT_KEYS) do if key ~= ':logs' then parts[#parts + 1] = R .. key end end
  redis.call('HSET', R, 'parts', redis.call('EXISTS', unpack(parts)))
  if word == 'succeeded' then let_expire() else clear(':window 0') end
  release_definitions(keep_ms)
  redis.call('ZADD', S .. ':finished', now + keep_ms, run)
  fresh, unasked, answered = {}, {}, {}
  if session then leave_queue(word, error_json) end
end

local function is_over() return status ~= 'running' end

local function count_down(n)
  if redis.call('HINCRBY', R, 'left', -n) == 0 and not is_over() then close('succeeded') end
end

-- A stream takes 4 kB when it begins, and a copy of it what it holds. A run may be parked for days, beside 10,000 others.
local function compact_log()
  local log = R .. ':log'
  if redis.call('XLEN', log) < 64 and redis.call('COPY', log, log .. ':copy') == 1 then redis.call('RENAME', log .. ':copy', log) end
end

local resolve, fail, refill, stop_name

-- The value that came for a step before it waited, under its id or, if nobody had it, under the end of that behind a '/'.
local function kept_signal(id)
  local key, name = R .. ':signals', id
  if redis.call('EXISTS', key) == 0 then return nil end
  while name do
    local value = redis.call('HGET', key, name)
    if value then
      redis.call('HDEL', key, name)
      count('signals', tenant, -1)
      return value
    end
    name = string.match(name, '/(.+)$')
  end
end

-- A step that can start now: it is sent, parked, or (decided in dispatch) begun on the spot.
local function make_ready(s)
  local text, _, spec = spec_of(s.id)
  if spec.deadline_s then redis.call('ZREM', S .. ':due', 'join|' .. run .. '|' .. s.id) end
  if spec.kind ~= 'wait' then
    fresh[#fresh + 1] = {s, text, spec}
    return
  end
  move(s, 'waiting_signal'); put(s)
  event('waiting', s.id, nil, nil, spec.params and spec.params.asks and cjson.encode({asks = spec.params.asks}))
  local value = kept_signal(s.id)
  if value then
    answered[#answered + 1] = {s, value}
    return
  end
  if spec.timeout_s then redis.call('ZADD', S .. ':due', now + spec.timeout_s * 1000, 'wait|' .. run .. '|' .. s.id) end
  compact_log()
end

-- All in-edges are resolved: the step starts, or is skipped.
local function settle(s)
  settled[s.id] = true
  if s.taken > 0 then make_ready(s) else unasked[#unasked + 1] = s end
end

local function too_late(name)
  local late = get(answering(name))
  if OVER[late.word] then return end
  stop_name(name)
  fail(late, 'missed_deadline', '{"error":{"code":"missed_deadline","message":"did not answer in time"}}')
end

-- Makes a joining step go on without those who are late.
local function force(s)
  local sources = cjson.decode(redis.call('HGET', R .. ':joins', s.id))
  settled[s.id] = true
  s.pending = 0
  put(s)
  make_ready(s)
  for _, source in ipairs(sources) do
    if type(source) == 'table' then
      redis.call('DEL', R .. ':backlog:' .. source.map)
      for i = 0, source.count - 1 do too_late(source.prefix .. '/' .. i) end
    else
      too_late(source)
    end
  end
end

-- A step ends: it leaves its place, and its outcome stands.
local function finish(s, word, output)
  s.on_the_way = s.word ~= 'ready'
  forget(s)
  move(s, word); s.owner = '-'; put(s)
  ended[s.id] = true
  if output then redis.call('HSET', R .. ':out', s.id, output) end
end

-- Resolves the out-edges of a step that ended, but for those to `except`.
local function open_edges(id, word, takes, except)
  for _, edge in ipairs(edges_of(id)) do
    local target = edge[1] ~= except and get(edge[1])
    if target and target.word == 'waiting' and target.pending > 0 then
      target.pending = target.pending - 1
      if takes[edge[2]] and edge[3] then target.taken = target.taken + 1 end
      local enough = false
      if target.quorum > 0 and word == 'done' then
        target.quorum = target.quorum - 1
        enough = target.quorum == 0
      end
      if target.pending == 0 then settle(target)
      elseif enough then force(target)
      else put(target) end
    end
  end
end

-- What follows from a step's end: its out-edges are resolved, its window moves on.
local function follow(s, takes)
  open_edges(s.id, s.word, takes)
  local _, _, spec = spec_of(s.id)
  if spec.window and s.on_the_way then refill(spec.window) end
  count_down(1)
end

resolve = function(s, word, takes, output)
  finish(s, word, output)
  follow(s, takes)
end

-- Skips the steps that nobody asked for, and those that hang on them. Lists, not recursion: a row may be 10,000 long.
local function drain()
  while #answered > 0 or #unasked > 0 do
    if #answered > 0 then
      local s, value = unpack(table.remove(answered))
      if not ended[s.id] then
        event('done', s.id)
        resolve(s, 'done', {done = true}, value)
      end
    else
      local s = table.remove(unasked)
      if not ended[s.id] then
        event('skipped', s.id)
        resolve(s, 'skipped', {})
      end
    end
  end
end

-- One item of a map is over: send as many more as its window has room for, a quarter of it at a time if it is wide.
refill = function(map)
  local packed = redis.call('HGET', R .. ':window', map)
  if not packed then return end
  local size, inflight = string.match(packed, '^(%d+) (%d+)$')
  size, inflight = tonumber(size), tonumber(inflight) - 1
  local enough = size < 32 and size - 1 or math.floor(size * 3 / 4)
  if inflight <= enough then
    while inflight < size do
      local id = redis.call('LPOP', R .. ':backlog:' .. map)
      if not id then break end
      local item = get(id)
      if not OVER[item.word] then
        make_ready(item)
        inflight = inflight + 1
      end
    end
  end
  redis.call('HSET', R .. ':window', map, size .. ' ' .. inflight)
end

-- The steps that a parent added but for its exit, and all that those added; maps among them send no more items. A list, not recursion: an agent may
-- have had thousands of rounds, each expanded by the one before. Nothing of a parent whose steps are not in a scope of its own.
local function all_expanded(root)
  local found, at, parent = {}, 0, root
  repeat
    local text = redis.call('HGET', R .. ':expansions', parent)
    local expansion = text and cjson.decode(text)
    if expansion and (parent ~= root or expansion.scoped) then
      local items = expansion.items
      for _, id in ipairs(expansion.ids) do
        if not (items and id == items.like) and not (parent == root and id == expansion.exit) then found[#found + 1] = id end
      end
      if items then
        redis.call('DEL', R .. ':backlog:' .. parent)
        for i = 0, items.count - 1 do found[#found + 1] = items.prefix .. '/' .. i end
      end
    end
    at = at + 1
    parent = found[at]
  until not parent
  return found
end

-- Stops what a parent added and is not over, all but its exit.
local function stop_scope(parent, exit)
  local stopped = {}
  for _, id in ipairs(all_expanded(parent)) do
    local s = id ~= exit and get(id)
    if s and not OVER[s.word] then
      forget(s); s.word, s.owner = 'skipped', '-'; put(s)
      event('skipped', id)
      ended[id] = true
      stopped[#stopped + 1] = id
    end
  end
  for _, id in ipairs(stopped) do open_edges(id, 'skipped', {}, exit) end
  if #stopped > 0 then count_down(#stopped) end
end

-- Stops all that works under a name, but for the step that answers to it: the exit of what it grew. Replies that step.
stop_name = function(name)
  local exit = answering(name)
  while name and name ~= exit do
    stop_scope(name, exit)
    name = redis.call('HGET', R .. ':names', name)
  end
  return exit
end

-- The step that feels the failure of a scope: the scope's exit, or if that is over, the one around it, or nil: the run.
-- Names may have moved to a step inside, whose scope lies in this one again: no scope is looked at twice.
local function feels(scope, look)
  local seen = {}
  while scope and not seen[scope] do
    seen[scope] = true
    local exit = get(look(scope))
    local _, _, spec = spec_of(exit.id)
    if not OVER[exit.word] then return exit, spec end
    scope = spec.scope
  end
end

-- Whether a scope's failure ends the run: nobody who feels it goes on after it.
local function ends_run(scope)
  local seen = {}
  local exit, spec = feels(scope, answering)
  while exit and not seen[exit.id] do
    if (spec.on_error or 'abort') ~= 'abort' then return false end
    seen[exit.id] = true
    exit, spec = feels(spec.scope, answering)
  end
  return true
end

-- Whether a step's failure is one of the run's own plan, or of an item of its maps: not one inside a team, an agent or a nested chain.
local function is_of_the_plan(spec) return not spec.scope or (spec.window and not string.find(spec.window, '/', 1, true)) end

-- A step failed for good. Its on_error says who feels it: the next step, the edges for failure, its scope, or the run. Of a run that `ends`, no scope
-- needs to be stopped.
fail = function(s, kind, info, ends)
  local _, _, spec = spec_of(s.id)
  redis.call('HSET', R .. ':info', s.id, info)
  event(kind, s.id, s.attempt, nil, info)
  local code = cjson.decode(info).error.code
  if code == 'budget' then -- no call can be paid any more, whoever would bear this failure
    finish(s, 'failed')
    return close('exhausted', info)
  end
  local on_error = spec.on_error or 'abort'
  if kind ~= 'missed_deadline' and is_of_the_plan(spec) then redis.call('HINCRBY', R, 'failures', 1) end
  if on_error == 'skip' or kind == 'missed_deadline' then return resolve(s, 'failed', {done = true}, 'null') end
  if on_error == 'jump' then return resolve(s, 'failed', {failed = true}) end
  finish(s, 'failed')
  ends = ends or ends_run(spec.scope)
  local exit = feels(spec.scope, ends and answering or stop_name)
  if not exit then
    return close(code == 'exhausted' and 'exhausted' or 'failed', info)
  end
  if not ends then
    open_edges(s.id, 'failed', {}, exit.id)
    count_down(1)
  end
  return fail(exit, kind, info, ends)
end

-- What the handler of a step needs.
local function needs(s, text, spec)
  local values = {}
  for name, ref in pairs(spec.reads or {}) do
    values[#values + 1] = name
    values[#values + 1] = output_of(string.sub(ref, 1, 1) == '=' and string.sub(ref, 2) or answering(ref))
  end
  if spec.kind == 'run.start' then
    values[#values + 1] = '@request'; values[#values + 1] = meta('request')
  end
  local given = spec.has_given and redis.call('HGET', R .. ':given', s.id)
  return {s.id, s.attempt, text, given or '', s.failures, values, definitions, tenant, kind_of_run, session or ''}
end

-- Whether a step has been tried and waits for its next try.
local function waits_to_try(s) return s and s.word == 'waiting' and s.attempt > 0 end

-- Leases a step to an owner; the reply is what its handler needs, and how long (ms) it waited, if it was sent.
local function lease(s, text, spec, owner, lease_ms)
  local waited = ''
  if s.word == 'sent' then
    redis.call('ZREM', S .. ':ready', run .. '|' .. s.id)
    waited = now - (tonumber(s.owner) or now)
  end
  move(s, 'running')
  s.attempt, s.owner = s.attempt + 1, owner
  put(s)
  redis.call('ZADD', S .. ':leases', now + lease_ms, lease_of(s))
  event('started', s.id, s.attempt, owner)
  local needed = needs(s, text, spec)
  needed[#needed + 1] = waited
  return needed
end

-- Parks a step whose effect may or may not have happened, for a person to say what came of it.
local function park(s, owner)
  forget(s)
  event('uncertain', s.id, s.attempt, owner)
  move(s, 'waiting_signal'); s.owner = '-'; put(s)
  keep_time()
end

-- Sends what this call made ready, save one step that the caller does at once: a decision, or the only one if it is cheap on his queue.
local function dispatch(resend_ms, ahead)
  drain()
  local sends, begun = {}, false
  for _, item in ipairs(fresh) do
    local s, text, spec = item[1], item[2], item[3]
    local cheap = spec.cheap
    if cheap == nil and ahead and spec.work then cheap = string.find(ahead.cheap, '\n' .. spec.work .. '\n', 1, true) ~= nil end
    if ended[s.id] then
      -- was late, or stopped, in the same call
    elseif ahead and not begun and (spec.decides or (#fresh == 1 and cheap and spec.queue == ahead.queue)) then
      begun = lease(s, text, spec, ahead.owner, ahead.lease_ms)
    else
      mark_sent(s, resend_ms)
      sends[#sends + 1] = s.id
      sends[#sends + 1] = text
    end
  end
  fresh = {}
  keep_time()
  return sends, begun
end
