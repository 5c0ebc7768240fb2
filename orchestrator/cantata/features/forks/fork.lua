-- Creates a run from another that is over and from the parts that stage.lua staged. All or nothing, once for a run id.
-- ARGV: run, the fork (JSON): {source, place: the stage (as a run's id), accepted_by: a name for this call, request (JSON), labels (JSON), resend_ms,
-- parts, failures, left, count, terminals, sent: steps that are staged as sent, ready: others that need not wait, deadlines: {step, s},
-- is_retry: whether the source notes the run in its field retried_as}
-- Replies {result, priority, sends {step, spec, ...}, 1 if something is left to do} of the ready; result: new, known, gone (the source), open (the source), undefined (its definitions),
-- lost (the stage).
local fork = cjson.decode(ARGV[2])
local staged, source = S .. ':run:' .. fork.place, S .. ':run:' .. fork.source
local past, flat = {}, redis.call('HGETALL', source)
for i = 1, #flat, 2 do past[flat[i]] = flat[i + 1] end
use(ARGV[1])

-- A repetition: steps that the first call sent and nobody began are sent by a sweep.
if status then return {meta('accepted_by') == fork.accepted_by and 'new' or 'known', priority, {}} end
if not past.status then return {'gone', 0, {}} end
if not past.parts then return {'open', 0, {}} end
if count_parts(source) < tonumber(past.parts) then return {'gone', 0, {}} end
if redis.call('HEXISTS', S .. ':definitions:' .. past.definitions, 'text') == 0 then return {'undefined', 0, {}} end
for _, part in ipairs(fork.parts) do
  if redis.call('EXISTS', staged .. part) == 0 then return {'lost', 0, {}} end
end
retain_definitions(past.definitions)

for _, part in ipairs(fork.parts) do
  if redis.call('TYPE', staged .. part).ok == 'hash' then redis.call('HDEL', staged .. part, '') end
  if redis.call('EXISTS', staged .. part) == 1 then
    redis.call('RENAME', staged .. part, R .. part)
    redis.call('PERSIST', R .. part)
  end
end
redis.call('UNLINK', R .. ':logged')
local staged_bytes = charged('run:' .. fork.place .. ':log')
discharge('run:' .. fork.place .. ':log')
if fork.is_retry then
  if not past.retried_as then count_total('retried') end
  redis.call('HSET', source, 'retried_as', run)
end

local deadline_at, priority = now + tonumber(past.timeout_ms), priority_among(run, past.tenant, past.kind)
redis.call('HSET', R, 'status', 'running', 'created_at', now, 'started_at', now, 'deadline_at', string.format('%d', deadline_at),
  'priority', priority, 'accepted_by', fork.accepted_by, 'request', fork.request, 'labels', fork.labels, 'left', fork.left, 'count', fork.count,
  'terminals', fork.terminals)
for _, field in ipairs({'definitions', 'kind', 'name', 'tenant', 'timeout_ms', 'timeout_by', 'max_attempts', 'max_steps', 'retention_ms',
                        'session', 'session_keep_ms', 'session_entries', 'has_workflow', 'webhooks', 'max_deliveries'}) do
  if past[field] then redis.call('HSET', R, field, past[field]) end
end
if fork.failures > 0 then redis.call('HSET', R, 'failures', fork.failures) end
use(run)
redis.call('ZADD', S .. ':due', deadline_at, 'deadline|' .. run .. '|')
redis.call('ZADD', S .. ':runs', now, run)
increase('bytes', (staged_bytes or RUN_BYTES) + STEP_BYTES * fork.count + #fork.request + #fork.labels + #(past.webhooks or ''))
if kind_of_run ~= 'webhook' then count_total('accepted') end

-- Steps staged as sent are only entered in S:ready, in bulk: to make each ready would take too long.
for i = 1, #fork.sent, 500 do
  local looks = {}
  for j = i, math.min(i + 499, #fork.sent) do
    looks[#looks + 1] = look_after(fork.resend_ms); looks[#looks + 1] = run .. '|' .. fork.sent[j]
  end
  redis.call('ZADD', S .. ':ready', unpack(looks))
end
increase('working', #fork.sent); roles_changed = true
for i = 1, #fork.deadlines, 500 do
  local due = {}
  for j = i, math.min(i + 499, #fork.deadlines) do
    local step, after_s = unpack(fork.deadlines[j])
    due[#due + 1] = now + after_s * 1000; due[#due + 1] = 'join|' .. run .. '|' .. step
  end
  redis.call('ZADD', S .. ':due', unpack(due))
end
for i = #fork.ready, 1, -1 do table.insert(lists.to_settle, fork.ready[i]) end
follow('settle_all')
local sends = take_ready(fork.resend_ms)
return {'new', priority, sends, unfinished and 1 or 0}
