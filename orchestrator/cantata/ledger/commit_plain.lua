-- Records plain outcomes, as nearly all are: the step is done, in its first attempt, and only its out-edges follow. It comes before steps.lua and lib.lua,
-- whose functions take longer to create than it takes in all. It reads what it needs before it writes. Where anything else is to be done, it replies nil
-- and has written nothing: then commit.lua, in the same call, records the outcomes.
use(ARGV[1])
local outcome = cjson.decode(ARGV[2])
local MOST = 2000 -- steps that one of the commands below names

-- What is to be read for some outcomes: {the out-edges of each step, ids of all steps whose states are needed}; nil if one is not plain.
local function read_for(outcomes)
  local edges, ids, known = {}, {}, {}
  for i, each in ipairs(outcomes) do
    if not each.plain or each.attempt ~= 1 or each.window ~= outcome.window then return end
    for _, entry in ipairs(each.code or {}) do
      if not used_code or not string.find(used_code, '\n' .. entry .. '\n', 1, true) then return end
    end
    for field in pairs(#outcomes > 1 and each.usage or {}) do
      if not counts[field] then return end -- adding it could fail, after others were recorded
    end
    ids[i] = each.step
  end
  if outcome.window then -- items, whose specs refer to one that they share
    for i, text in ipairs(redis.call('HMGET', R .. ':steps', unpack(ids))) do spec_of(ids[i], text) end
  end
  for i, text in ipairs(redis.call('HMGET', R .. ':edges', unpack(ids))) do
    edges[i] = edges_of(ids[i], text)
    for _, edge in ipairs(edges[i]) do
      if edge[4] then return end
      if not known[edge[1]] then ids[#ids + 1], known[edge[1]] = edge[1], true end
    end
  end
  return edges, ids
end

local function record_plain(outcomes, outputs_of)
  if status ~= 'running' or unfinished or cancelling or time_left or counts.asking > 0 or counts.left <= #outcomes or outcome.advance then return end
  local edges, ids = read_for(outcomes)
  if not ids or #ids > MOST then return end
  local next_step, ahead, states_of = outcome.next_step, outcome.ahead, {}
  ids[#ids + 1] = next_step
  for i, packed in ipairs(redis.call('HMGET', R .. ':state', unpack(ids))) do states_of[ids[i]] = packed end

  local ready, done = {}, {} -- {step, how often it was taken}; states without the owner
  for i, each in ipairs(outcomes) do
    local counters, owner = string.match(states_of[each.step] or '', '^running 1 (%d+ %d+ %d+ %d+ %d+) (.*)$')
    if owner ~= each.owner then return end
    done[i] = 'done 1 ' .. counters
    for _, edge in ipairs(edges[i]) do
      local target = edge[1]
      local pending, taken = string.match(states_of[target] or '', '^waiting 0 (%d+) (%d+) 0 0 0 ')
      if not pending or pending == '0' then return end
      if edge[2] == 'done' and edge[3] then taken = taken + 1 end
      states_of[target] = string.format('waiting 0 %d %d 0 0 0 -', pending - 1, taken)
      if pending == '1' then
        if taken == '0' then return end
        ready[#ready + 1] = {target, taken}
      end
    end
  end
  local window, size, inflight, sent = outcome.window, nil, nil, {}
  if window then
    size, inflight = window_of(window)
    if not size then return end
    inflight = inflight - #outcomes
    if inflight <= refilled_at(size) then
      if size - inflight > MOST then return end
      sent = redis.call('LRANGE', R .. ':backlog:' .. window, 0, size - inflight - 1)
      for i, text in ipairs(#sent > 0 and redis.call('HMGET', R .. ':steps', unpack(sent)) or {}) do spec_of(sent[i], text) end
      for i, packed in ipairs(#sent > 0 and redis.call('HMGET', R .. ':state', unpack(sent)) or {}) do
        local taken = string.match(packed, '^ready 0 0 (%d+) 0 0 0 ')
        if not taken then return end
        ready[#ready + 1] = {sent[i], taken}
      end
    end
  end
  local begun, waited
  if #ready > 1 and not window then
    local steps = {}
    for i, item in ipairs(ready) do steps[i] = item[1] end
    for i, text in ipairs(redis.call('HMGET', R .. ':steps', unpack(steps))) do spec_of(steps[i], text) end
  end
  for _, item in ipairs(ready) do
    local spec = spec_of(item[1])
    if spec.kind == 'wait' or spec.deadline_s then return end
    if ahead and not begun and (spec.decides or (#ready == 1 and goes_ahead(spec, ahead))) then begun, waited = item, '' end
  end
  local state = not begun and next_step and states_of[next_step]
  if state and string.sub(state, 1, 5) == 'sent ' then
    local taken, since = string.match(state, '^sent 0 0 (%d+) 0 0 0 (%d+)$')
    if not taken then return end
    begun, waited = {next_step, taken}, now - since
  end

  local outs, infos, leases, results, bytes = {}, {}, {}, {}, 0
  for i, each in ipairs(outcomes) do
    local id, output = each.step, outputs_of[i]
    outs[#outs + 1], outs[#outs + 2] = id, output
    infos[#infos + 1], infos[#infos + 2] = id, each.info
    leases[i], results[i], outputs[id] = run .. '|1|' .. each.owner .. '|' .. id, 'ok', output
    bytes = bytes + #output + #each.info
    add_usage(each.usage)
    event('done', id, 1)
    set_state(id, done[i] .. ' ' .. (i == #outcomes and begun and '>' .. begun[1] or '-'))
    for _, edge in ipairs(edges[i]) do set_state(edge[1], states_of[edge[1]]) end
  end
  redis.call('HSET', R .. ':out', unpack(outs))
  redis.call('HSET', R .. ':info', unpack(infos))
  redis.call('ZREM', S .. ':leases', unpack(leases))
  increase('bytes', bytes)
  increase('left', -#outcomes)
  increase('working', #ready - #outcomes)
  if window then redis.call('HSET', R .. ':window', window, size .. ' ' .. inflight + #sent) end
  if #sent > 0 then redis.call('LTRIM', R .. ':backlog:' .. window, #sent, -1) end

  local sends, checks, inputs = {}, {}, nil
  for _, item in ipairs(ready) do
    if item ~= begun then
      set_state(item[1], string.format('sent 0 0 %d 0 0 0 %s', item[2], now_text))
      checks[#checks + 1], checks[#checks + 2] = now + outcome.resend_ms, run .. '|' .. item[1]
      sends[#sends + 1], sends[#sends + 2] = item[1], (select(2, spec_of(item[1])))
    end
  end
  if #checks > 0 then redis.call('ZADD', S .. ':ready', unpack(checks)) end
  if begun then
    local id, owner = begun[1], outcome.next_owner
    if waited ~= '' then redis.call('ZREM', S .. ':ready', run .. '|' .. id) end
    set_state(id, string.format('running 1 0 %d 0 0 0 %s', begun[2], owner))
    redis.call('ZADD', S .. ':leases', now + outcome.lease_ms, run .. '|1|' .. owner .. '|' .. id)
    event('started', id, 1, owner)
    inputs = handler_inputs({id = id, attempt = 1, failures = 0})
    inputs.waited_ms = waited ~= '' and waited or nil
  end
  results[#results] = nil
  return named{result = 'ok', sends = sends, begun = inputs and named(inputs), run_status = status, results_before = results}
end

local before, outputs_of = outcome.before or {}, {}
for i = 1, #before do outputs_of[i] = ARGV[4 + i] end
before[#before + 1], outputs_of[#before + 1] = outcome, ARGV[3]
local plain = record_plain(before, outputs_of)
if plain then return plain end
before[#before] = nil
