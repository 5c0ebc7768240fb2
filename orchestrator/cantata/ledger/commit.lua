-- Records the outcome of an attempt, first writer wins, and resolves what follows. commit_plain.lua, before it in the same script, has decoded `outcome`.
-- ARGV: run, the outcome (JSON), its output (JSON text or ""), the output of the advance or "", those of `before`. The outcome:
-- {step, attempt, owner, status (done | failed | retry | wait | dispatched), info (JSON text), takes?: [label, ...], else done; retry_ms?, usage?, fragment?,
-- blob?: digest under which a large output is stored, warnings?: [text, ...], code?: [module@digest, ...] that it ran with, window?: of its spec,
-- plain?: true, if commit_plain.lua may record it; resend_ms, lease_ms, next_owner: of a step begun by this call;
-- ahead?: {queue, cheap ("\nname\n..."), rounds?, tool?}, next_step? of its message,
-- advance?: the outcome of a workflow's advance that was executed already, which counts only if this call begins that step,
-- before?: [the outcome of a pure step, ...], which are recorded first}
-- Replies named: result; sends {step, spec, ...}; begun?: what the handler of the begun step gets (named); run_status;
-- following {run, priority, step, spec, ...}: the next runs of sessions; has_advanced?: 1 if the advance is recorded too, and the others are of its commit;
-- results_before {result, ...}: of `before`; has_posts?: 1 if the outbox got an entry; is_left?: 1 if something is left to do, which finish.lua does;
-- or {'unfinished'}: this is to be called again when finish.lua has done what is left of an earlier call, or of `before`.
-- result: ok, again (a repetition; steps that the first call made ready are sent by a sweep), stale, closed, gone.
local lease_ms, resend_ms = outcome.lease_ms, outcome.resend_ms

local function commit(outcome, output)
  local attempt, info = outcome.attempt, outcome.info
  local s = get(outcome.step)
  if not s then return {result = 'gone', sends = {}} end

  local function begin_next()
    local n = outcome.next_step and not is_over() and get(outcome.next_step)
    if not n or n.state ~= 'sent' then return false end
    return lease(n, outcome.next_owner, lease_ms)
  end

  -- The step that the first of these calls began: it is recorded with the ended step, or is the next of the batch.
  local function begun_before()
    for _, id in ipairs({string.match(s.owner, '^>(.*)$') or outcome.next_step, outcome.next_step}) do
      local n = get(id)
      if n and n.state == 'running' and n.owner == outcome.next_owner then return handler_inputs(n) end
    end
    return not outcome.advance and begin_next()
  end

  local is_valid = has_lease(s, attempt, outcome.owner) or (outcome.status ~= 'dispatched' and is_dispatched(s, attempt))
  local was_recorded = s.state == outcome.status and s.attempt == attempt
  local was_stopped = s.state == 'skipped' and s.attempt == attempt
  if (outcome.status == 'done' and not is_valid and not was_recorded) or (outcome.status == 'failed' and was_stopped) then
    add_usage_once(s.id, attempt, outcome.usage)
  end
  if status ~= 'running' then return {result = 'closed', sends = {}} end
  if not is_valid then return {result = was_recorded and 'again' or 'stale', sends = {}, begun = begun_before() or nil} end
  if will_be_refused(s) then announce(s) end
  if s.state == 'dispatched' then
    redis.call('ZREM', S .. ':tasks', task_of(s))
    move(s, 'running')
  end

  add_usage(outcome.usage)
  increase('bytes', #info)
  if outcome.code then
    local known = used_code or '\n'
    local whole = known
    for _, entry in ipairs(outcome.code) do
      if #whole < 4000 and not string.find(whole, '\n' .. entry .. '\n', 1, true) then whole = whole .. entry .. '\n' end
    end
    if whole ~= known then redis.call('HSET', R, 'code', whole); used_code = whole end
  end
  for _, text in ipairs(outcome.warnings or {}) do event('warning', s.id, attempt, nil, cjson.encode({message = text})) end

  local function wait_for_retry(timer)
    remove_entries(s)
    move(s, 'waiting'); s.owner = '-'; put(s)
    redis.call('HSET', R .. ':info', s.id, info)
    redis.call('ZADD', S .. ':due', now + (outcome.retry_ms or 0), timer .. '|' .. run .. '|' .. s.id)
    return {result = 'ok', sends = {}, begun = begin_next() or nil}
  end

  if outcome.status == 'dispatched' then
    remove_entries(s)
    move(s, 'dispatched'); s.owner = string.format('%d', now); put(s)
    redis.call('HSET', R .. ':info', s.id, info)
    redis.call('ZADD', S .. ':tasks', now + (outcome.retry_ms or 0), task_of(s))
    event('dispatched', s.id, attempt, nil, info)
    return {result = 'ok', sends = {}, begun = begin_next() or nil}
  end
  if outcome.status == 'retry' then
    s.failures = s.failures + 1
    event('retry', s.id, attempt, nil, info)
    return wait_for_retry('retry')
  end
  if outcome.status == 'wait' then
    local before = redis.call('HGET', R .. ':info', s.id)
    if not before or cjson.decode(before).reason ~= cjson.decode(info).reason then -- one event for each reason
      event('rate_limited', s.id, attempt, nil, info)
    end
    return wait_for_retry('permit')
  end
  local spec = spec_of(s.id)
  if spec.kind == 'workflow.advance' and (not outcome.fragment or #outcome.fragment.edges == 0) then -- it is the last of its history
    local root = (spec.params or {}).root or s.id
    if root ~= s.id then follow('stop_name', root, s.id) end
  end
  if outcome.status == 'failed' then
    fail(s, 'failed', info)
  else
    if outcome.blob then
      if redis.call('HSETNX', R .. ':blobs', outcome.blob, output) == 1 then increase('bytes', #output) end
      output = '@' .. outcome.blob
    end
    redis.call('HSET', R .. ':info', s.id, info)
    local takes = {}
    for _, label in ipairs(outcome.takes or {'done'}) do takes[label] = true end
    if outcome.fragment then
      expand(s, output, takes, outcome.fragment)
    else
      event('done', s.id, attempt)
      resolve(s, 'done', takes, output)
    end
  end
  local ahead = outcome.ahead
  if ahead then
    ahead.owner, ahead.lease_ms, ahead.executed = outcome.next_owner, lease_ms, outcome.advance and outcome.advance.step
  end
  local sends, begun = take_ready(resend_ms, ahead)
  begun = begun or (not unfinished and begin_next())
  if begun then s.owner = '>' .. begun.step; put(s) end
  return {result = 'ok', sends = sends, begun = begun or nil}
end

if unfinished then return {'unfinished'} end
local results, sends = {}, {}
for i, each in ipairs(outcome.before or {}) do
  local result = status and commit(each, ARGV[4 + i]) or {result = 'gone', sends = {}}
  write_changes() -- else an error in a later one would lose them
  results[i] = result.result
  if unfinished then return {'unfinished'} end
  for _, item in ipairs(result.sends) do sends[#sends + 1] = item end
end
if not status then return named{result = 'gone', results_before = results} end
local reply = commit(outcome, ARGV[3])
for _, item in ipairs(reply.sends) do sends[#sends + 1] = item end

local function answer(result, ready, begun, has_advanced)
  return named{
    result = result, sends = ready, begun = begun and named(begun), run_status = status, following = following, has_advanced = has_advanced,
    results_before = results, has_posts = (#posts > 0 or has_posts == 1) and 1 or nil, is_left = unfinished and 1 or nil,
  }
end

local advance = outcome.advance
local was_begun = advance and reply.result == 'again' and get(outcome.step).owner == '>' .. advance.step -- by the first of these calls, which recorded it
if advance then advance.ahead, advance.next_step = outcome.ahead, outcome.next_step end
if advance and not cancelling and #sends == 0 and (in_place or was_begun) then
  local result = commit(advance, ARGV[4])
  if result.result == 'ok' or result.result == 'again' then return answer(reply.result, result.sends, result.begun, 1) end
end
if in_place then -- the advance is to be executed again
  local id, waited = in_place.id, in_place.waited
  in_place = nil
  reply.begun = lease_begun(get(id), lease_ms, waited)
end
return answer(reply.result, sends, reply.begun)
