-- Creates a run from another that is over and from the parts that lua/stage.lua staged. All or nothing, once for a run id.
-- ARGV: run, source, the stage (as a run's id), a name for this call, request (JSON), labels (JSON), resend_ms, plan (JSON): {parts, failures, left,
-- count, terminals, sent: steps that are staged as sent, ready: others that need not wait, deadlines: {step, s}}
-- Replies {word, priority, sends {step, spec, ...}} of the ready; word: new, known, gone (the source), open (the source), undefined (its definitions),
-- lost (the stage).
use(ARGV[3])
local staged = R
use(ARGV[2])
local source, RS = run, R
local past = redis.call('HMGET', RS, 'status', 'timeout_ms', 'timeout_by', 'definitions', 'kind', 'tenant', 'max_attempts', 'max_steps',
  'retention_ms', 'session', 'session_keep_ms', 'session_entries', 'closed_at', 'bytes', 'parts')
use(ARGV[1])
local plan = cjson.decode(ARGV[8])
local resend_ms = tonumber(ARGV[7])

-- A repetition: steps that the first call sent and nobody began are sent by a sweep.
if status then return {meta('accepted_by') == ARGV[4] and 'new' or 'known', tonumber(meta('priority')), {}} end
if not past[1] then return {'gone', 0, {}} end
if not past[13] then return {'open', 0, {}} end
local kept = {}
for _, part in ipairs(KEPT_KEYS) do if part ~= ':logs' then kept[#kept + 1] = RS .. part end end
if redis.call('EXISTS', unpack(kept)) < tonumber(past[15]) then return {'gone', 0, {}} end
if redis.call('HEXISTS', S .. ':definitions:' .. past[4], 'text') == 0 then return {'undefined', 0, {}} end
for _, part in ipairs(plan.parts) do
  if redis.call('EXISTS', staged .. part) == 0 then return {'lost', 0, {}} end
end
retain_definitions(past[4])
local timeout_ms = tonumber(past[2])

for _, part in ipairs(plan.parts) do
  if redis.call('TYPE', staged .. part).ok == 'hash' then redis.call('HDEL', staged .. part, '') end
  if redis.call('EXISTS', staged .. part) == 1 then
    redis.call('RENAME', staged .. part, R .. part)
    redis.call('PERSIST', R .. part)
  end
end
redis.call('UNLINK', R .. ':logged')

status, definitions, tenant, kind_of_run, session = 'running', past[4], past[6], past[5], past[10]
local priority = priority_among(tenant)
redis.call('HSET', R, 'status', status, 'created_at', now, 'started_at', now, 'deadline_at', string.format('%d', now + timeout_ms),
  'definitions', definitions, 'kind', kind_of_run, 'tenant', tenant, 'priority', priority, 'accepted_by', ARGV[4], 'request', ARGV[5],
  'labels', ARGV[6], 'timeout_ms', past[2], 'timeout_by', past[3] or '', 'max_attempts', past[7], 'max_steps', past[8],
  'retention_ms', past[9], 'left', plan.left, 'count', plan.count, 'terminals', plan.terminals)
if plan.failures > 0 then redis.call('HSET', R, 'failures', plan.failures) end
if session then redis.call('HSET', R, 'session', session, 'session_keep_ms', past[11], 'session_entries', past[12]) end
redis.call('ZADD', S .. ':due', now + timeout_ms, 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
add_bytes(tonumber(past[14] or 0) + #ARGV[5])
count_total('accepted')

-- Steps staged as sent are only entered in S:ready, in bulk: to make each ready would take too long.
for i = 1, #plan.sent, 500 do
  local looks = {}
  for j = i, math.min(i + 499, #plan.sent) do
    looks[#looks + 1] = now + resend_ms; looks[#looks + 1] = run .. '|' .. plan.sent[j]
  end
  redis.call('ZADD', S .. ':ready', unpack(looks))
end
changes.working = #plan.sent
for _, each in ipairs(plan.deadlines) do redis.call('ZADD', S .. ':due', now + each[2] * 1000, 'join|' .. run .. '|' .. each[1]) end
for _, id in ipairs(plan.ready) do
  local s = get(id)
  if s.word == 'waiting' and not settled[s.id] and not ended[s.id] then
    if s.pending == 0 then settle(s) else force_join(s) end
  end
end
local sends = dispatch(resend_ms)
return {'new', priority, sends}
