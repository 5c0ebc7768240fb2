-- Functions of the scripts that accept runs, behind lib.lua.

-- Stores definitions under their digest if a text is given; replies whether they are stored.
local function store_definitions(digest, text)
  local key = S .. ':definitions:' .. digest
  if not text then return redis.call('HEXISTS', key, 'text') == 1 end
  redis.call('HSETNX', key, 'text', text)
  return true
end

-- Accepts a run, once: the same id again changes nothing.
-- offer: {step, spec, resend_ms, max_waiting?: runs in its session, fields: of the run; accepted_by, by which a repetition is recognized, definitions,
-- tenant, timeout_ms, session? and session_keep_ms?, batch? among them}
-- Replies {result, priority}; result: new, queued (behind others of its session), known, undefined (the text of the definitions is missing), full.
local function accept(run_id, offer, definitions_text)
  local step, fields = offer.step, offer.fields
  use(run_id)
  if status then
    return {meta('accepted_by') == fields.accepted_by and 'new' or 'known', priority}
  end
  local queue = fields.session and session_key(fields.session) .. ':queue'
  if queue and redis.call('LLEN', queue) > offer.max_waiting then return {'full', 0} end
  if not store_definitions(fields.definitions, definitions_text) then return {'undefined', 0} end

  local priority = priority_among(run_id, fields.tenant, fields.kind, fields.batch)
  write_run(run_id, step, offer.spec, fields, priority)
  use(run_id)
  if kind_of_run ~= 'webhook' then count_total('accepted') end
  if queue and enqueue_run(session, fields.session_keep_ms) > 1 then
    redis.call('HSET', R .. ':state', step, 'waiting 0 0 1 0 0 0 -')
    redis.call('HSET', R, 'time_left', fields.timeout_ms) -- its clock starts when it is first in the queue
    return {'queued', priority}
  end
  start_run(run, step, fields.timeout_ms, offer.resend_ms)
  return {'new', priority}
end
