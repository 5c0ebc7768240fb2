-- Makes a run of another that is over: what it took over stands as it ended, the rest starts. All of it or nothing, once for a run id.
-- ARGV: run, source, a name for this call, request (JSON), output of @start (JSON), labels (JSON), resend_ms, what is done anew (JSON: a Fork)
-- Replies {word, priority, sends {step, spec, ...}}; word: new, known, gone (the source), open (the source), undefined (its definitions).
use(ARGV[2])
local source, RS = run, R
local past = redis.call('HMGET', RS, 'status', 'timeout_ms', 'timeout_by', 'definitions', 'kind', 'tenant', 'max_attempts', 'max_steps',
  'retention_ms', 'session', 'session_keep_ms', 'session_entries', 'closed_at', 'bytes')
use(ARGV[1])
local fork = cjson.decode(ARGV[8])
local resend_ms = tonumber(ARGV[7])

-- Told again: the steps that it sent then and that nobody began.
if status then
  local sends = {}
  if meta('accepted_by') ~= ARGV[3] then return {'known', tonumber(meta('priority')), sends} end
  for _, redone in ipairs(fork.redone) do
    local s = get(redone.step_id)
    if s and s.word == 'sent' then sends[#sends + 1] = s.id; sends[#sends + 1] = (spec_of(s.id)) end
  end
  return {'new', tonumber(meta('priority')), sends}
end
if not past[1] then return {'gone', 0, {}} end
if not past[13] then return {'open', 0, {}} end
if redis.call('HEXISTS', S .. ':definitions:' .. past[4], 'text') == 0 then return {'undefined', 0, {}} end
hold_definitions(past[4])
local timeout_ms = tonumber(past[2])

local function hdel_all(key, fields)
  for i = 1, #fields, 1000 do redis.call('HDEL', key, unpack(fields, i, math.min(i + 999, #fields))) end
end

local function take_over(part)
  if redis.call('COPY', RS .. part, R .. part) == 1 then redis.call('PERSIST', R .. part) end
end

local function change(part, changes, text_of)
  for name, value in pairs(changes) do
    if value == false or value == cjson.null then redis.call('HDEL', R .. part, name)
    else redis.call('HSET', R .. part, name, text_of(value)) end
  end
end

status, definitions, tenant, kind_of_run, session = 'running', past[4], past[6], past[5], past[10]
local open = redis.call('HINCRBY', S .. ':tenants', tenant, 1)
local priority = open <= 1 and 0 or open <= 4 and 3 or open <= 16 and 6 or 9
redis.call('HSET', R, 'status', status, 'created_at', now, 'started_at', now, 'deadline_at', string.format('%d', now + timeout_ms),
  'definitions', definitions, 'kind', kind_of_run, 'tenant', tenant, 'priority', priority, 'accepted_by', ARGV[3], 'request', ARGV[4],
  'labels', ARGV[6], 'timeout_ms', past[2], 'timeout_by', past[3] or '', 'max_attempts', past[7], 'max_steps', past[8],
  'retention_ms', past[9], 'left', fork.left, 'count', fork.count, 'terminals', fork.terminals)
if session then redis.call('HSET', R, 'session', session, 'session_keep_ms', past[11], 'session_entries', past[12]) end
redis.call('ZADD', S .. ':due', now + timeout_ms, 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
keep(tonumber(past[14] or 0) + #ARGV[4])
tally('accepted')
event('accepted', nil, nil, nil, cjson.encode({forked_from = source}))

for _, part in ipairs({':steps', ':edges', ':out', ':info', ':given', ':names', ':grown', ':blobs'}) do take_over(part) end
local anew, ids = {}, {}
for _, redone in ipairs(fork.redone) do anew[redone.step_id] = true; ids[#ids + 1] = redone.step_id end
hdel_all(R .. ':out', ids)
hdel_all(R .. ':info', ids)
for _, step_id in ipairs(fork.removed) do anew[step_id] = true end
for _, part in ipairs({':steps', ':edges', ':out', ':info', ':given'}) do
  hdel_all(R .. part, fork.removed)
  hdel_all(R .. part, fork.forgotten)
end
hdel_all(R .. ':grown', fork.regrow)
change(':edges', fork.edges, cjson.encode)
change(':names', fork.names, tostring)
if not anew['@start'] then redis.call('HSET', R .. ':out', '@start', ARGV[5]) end

-- Outputs that nobody here has are left to the source.
local held = {}
for _, out in ipairs(redis.call('HVALS', R .. ':out')) do held[out] = true end
for _, digest in ipairs(redis.call('HKEYS', R .. ':blobs')) do
  if not held['@' .. digest] then redis.call('HDEL', R .. ':blobs', digest) end
end

-- What is taken over ended, though in no attempt of this run.
local cells, states, failures = redis.call('HGETALL', RS .. ':state'), {}, 0
for i = 1, #cells, 2 do
  if not anew[cells[i]] then
    local s = parse(cells[i], cells[i + 1])
    states[#states + 1] = s.id; states[#states + 1] = s.word .. ' 0 0 ' .. s.taken .. ' 0 0 0 -'
    if s.word == 'failed' and is_of_the_plan(select(3, spec_of(s.id))) then failures = failures + 1 end
  end
end
hset_all(R .. ':state', states)
if failures > 0 then redis.call('HSET', R, 'failures', failures) end
local told = {}
local ENDINGS = {done = true, failed = true, skipped = true, grown = true, late = true}
for _, entry in ipairs(redis.call('XRANGE', RS .. ':log', '-', '+')) do
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  if ENDINGS[fields.t] and not anew[fields.s] then
    event(fields.t, fields.s, nil, nil, fields.d)
    told[fields.s] = true
  end
end
for i = 1, #states, 2 do
  if not told[states[i]] then event('skipped', states[i]) end
end

-- The rest stands as it did before it was ready.
local in_backlog, first = {}, {}
for map, window in pairs(fork.windows) do
  local free = math.max(0, math.min(window.size - window.busy, #window.items))
  local backlog = {}
  for i, item in ipairs(window.items) do
    if i > free then backlog[#backlog + 1] = item; in_backlog[item] = true end
  end
  for i = 1, #backlog, 1000 do redis.call('RPUSH', R .. ':backlog:' .. map, unpack(backlog, i, math.min(i + 999, #backlog))) end
  redis.call('HSET', R .. ':window', map, window.size .. ' ' .. (window.busy + free))
end
local order = {}
for _, redone in ipairs(fork.redone) do
  local s = {id = redone.step_id, word = in_backlog[redone.step_id] and 'ready' or 'waiting', attempt = 0, pending = redone.pending,
    taken = redone.taken, failures = 0, crashes = 0, quorum = redone.quorum, owner = '-', enough = redone.is_enough}
  put(s)
  order[#order + 1] = s
  if redone.joins ~= cjson.null then redis.call('HSET', R .. ':joins', s.id, cjson.encode(redone.joins)) end
  if redone.deadline_s ~= cjson.null then
    redis.call('ZADD', S .. ':due', now + redone.deadline_s * 1000, 'join|' .. run .. '|' .. s.id)
  end
end
for _, s in ipairs(order) do
  if s.word == 'waiting' and not settled[s.id] and not ended[s.id] then
    if s.pending == 0 then settle(s) elseif s.enough then force(s) end
  end
end
local sends = dispatch(resend_ms)
return {'new', priority, sends}
