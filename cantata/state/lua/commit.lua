-- Records the outcome of an attempt, first writer wins, and resolves what follows.
-- ARGV: run, step, attempt, owner, status (done | failed | retry | wait), output, blob, info, takes ("done,true"), usage ("in,out,cost,model,tool" or ""),
--       retry_ms, resend_ms, fragment (JSON or ""), queue, cheap ("\nname\n...") or "" for not running ahead, lease_ms, next step of the batch or "",
--       warnings (JSON list or ""), owner of a step begun by this call, user code it ran with (lines of module@digest)
-- Replies {word, sends {step, spec, ...}, begun or false, run status, {run, priority, step, spec, ...} of the next runs of sessions};
-- word: ok, again (a repetition; steps that the first call made ready are sent by a sweep), stale, closed, gone.
use(ARGV[1])
if not status then return {'gone', {}, false, '', {}} end
local s = get(ARGV[2])
local attempt = tonumber(ARGV[3])
local resend_ms, lease_ms = tonumber(ARGV[12]), tonumber(ARGV[16])
if not s then return {'gone', {}, false, status, {}} end

local next_owner = ARGV[19]

local function begin_next()
  if ARGV[17] == '' or is_over() then return false end
  local n = get(ARGV[17])
  if not n or n.word ~= 'sent' then return false end
  local text, _, spec = spec_of(n.id)
  return lease(n, text, spec, next_owner, lease_ms)
end

-- The step that the first of these calls began: it is recorded with the ended step, or is the next of the batch.
local function begun_before()
  for _, id in ipairs({string.match(s.owner, '^>(.*)$') or ARGV[17], ARGV[17]}) do
    local n = id ~= '' and get(id)
    if n and n.word == 'running' and n.owner == next_owner then
      local text, _, spec = spec_of(id)
      return handler_inputs(n, text, spec)
    end
  end
  return begin_next()
end

local counts = s.word == 'running' and s.attempt == attempt and s.owner == ARGV[4]
local counted = s.word == ARGV[5] and s.attempt == attempt
local was_stopped = s.word == 'skipped' and s.attempt == attempt
if (ARGV[5] == 'done' and not counts and not counted) or (ARGV[5] == 'failed' and was_stopped) then add_usage_once(s.id, attempt, ARGV[10]) end
if status ~= 'running' then return {'closed', {}, false, status, {}} end
if not counts then return {counted and 'again' or 'stale', {}, begun_before(), status, {}} end

add_usage(ARGV[10])
add_bytes(#ARGV[6] + #ARGV[7] + #ARGV[8])
if ARGV[20] ~= '' then
  local known = meta('code') or '\n'
  local whole = known
  for entry in string.gmatch(ARGV[20], '[^\n]+') do
    if #whole < 4000 and not string.find(whole, '\n' .. entry .. '\n', 1, true) then whole = whole .. entry .. '\n' end
  end
  if whole ~= known then redis.call('HSET', R, 'code', whole) end
end
if ARGV[18] ~= '' then
  for _, text in ipairs(cjson.decode(ARGV[18])) do event('warning', s.id, attempt, nil, cjson.encode({message = text})) end
end

if ARGV[5] == 'retry' or ARGV[5] == 'wait' then
  remove_entries(s)
  if ARGV[5] == 'retry' then s.failures = s.failures + 1 end
  move(s, 'waiting'); s.owner = '-'; put(s)
  local before = ARGV[5] == 'wait' and redis.call('HGET', R .. ':info', s.id)
  redis.call('HSET', R .. ':info', s.id, ARGV[8])
  redis.call('ZADD', S .. ':due', now + tonumber(ARGV[11]), (ARGV[5] == 'retry' and 'retry|' or 'permit|') .. run .. '|' .. s.id)
  if ARGV[5] == 'retry' then
    event('retry', s.id, attempt, nil, ARGV[8])
  elseif not before or cjson.decode(before).reason ~= cjson.decode(ARGV[8]).reason then -- one event for each reason
    event('rate_limited', s.id, attempt, nil, ARGV[8])
  end
  return {'ok', {}, begin_next(), status, {}}
end
if ARGV[5] == 'failed' then
  fail(s, 'failed', ARGV[8])
else
  if ARGV[7] ~= '' then redis.call('HSETNX', R .. ':blobs', string.sub(ARGV[6], 2), ARGV[7]) end
  redis.call('HSET', R .. ':info', s.id, ARGV[8])
  local takes = {}
  for label in string.gmatch(ARGV[9], '[^,]+') do takes[label] = true end
  if ARGV[13] ~= '' then
    expand(s, ARGV[6], takes, cjson.decode(ARGV[13]))
  else
    event('done', s.id, attempt)
    resolve(s, 'done', takes, ARGV[6])
  end
end
local ahead = ARGV[15] ~= '' and {queue = ARGV[14], cheap = ARGV[15], owner = next_owner, lease_ms = lease_ms} or nil
local sends, begun = dispatch(resend_ms, ahead)
if begun then s.owner = '>' .. begun[1]; put(s) end
return {'ok', sends, begun or begin_next(), status, following}
