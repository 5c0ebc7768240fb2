-- Signals a waiting step; the signal is kept if the step does not wait yet. One for a step that the run does not have is kept too, unless other steps of a
-- chain wait: its name may be misspelt. In a run with a workflow in Python, all are kept for the steps of a name that are to come: it may be written anywhere
-- in the code. Elsewhere a second one must not answer another question.
-- ARGV: run, the signal (JSON) and its value (JSON). The signal: {step, key: KEY_LENGTH characters of its own, so that a call which is repeated after a lost
-- reply counts once, resend_ms, max_kept, max_bytes: early signals that the run may keep, after a search
-- count: the number of steps that the run had before it, and found: the ids and names that end in '/' and the name,
-- by?: its author, author?: how the event names who sent it, {by, via, verified}, groups?: those for which it may answer, checked?: the step whose conditions
-- (answer_schema, who) were checked, met?: they are known, and it meets them}
-- The step is named by its id, or by the end of it behind a '/' if only one step matches.
-- Replies {result, sends, 1 if something is left to do}: taken, kept, over, closed, unknown, unclear, full; {search, number of steps}: no step has this id, or steps were added since;
-- or {check, {step, its spec, its info}}: the caller is to check the conditions of this step, and call again; its spec is "" if the run has none so far.

local KEY_LENGTH, MAX_KEYS = 16, 256 -- of the signals last counted

-- Remembers that a signal counted, and as what.
local function counted(key, word)
  local kept = key and string.sub(key .. word .. (meta('signal_keys') or ''), 1, (KEY_LENGTH + #word) * MAX_KEYS)
  if kept then redis.call('HSET', R, 'signal_keys', kept) end
end

-- Whether a step is a wait that a signal ends.
local function takes_signal(id)
  local spec = spec_of(id)
  return spec.kind == 'wait' and not sleeps(spec)
end

-- The found steps that wait for a signal; else those that waited or will wait; else any one. Of waits that are over and may come again, one.
local function waiting_of(names)
  local seen = {}
  local waiting, others, not_waits = {}, {}, {}
  local ids = answering_all(names)
  read_states(ids)
  read_specs_of(ids)
  for _, id in ipairs(ids) do
    local s = not seen[id] and get(id)
    if s then
      seen[id] = true
      local is_sleep = sleeps(spec_of(id))
      local into = s.state == 'waiting_signal' and not is_sleep and waiting or takes_signal(id) and others or not_waits
      if not (into == others and #others > 0 and OVER[s.state] and repeats(spec_of(id))) then into[#into + 1] = id end
    end
  end
  if #waiting > 0 then return waiting end
  return #others > 0 and others or {not_waits[1]}
end

local signal, value = cjson.decode(ARGV[2]), ARGV[3]
use(ARGV[1])
if not status then return {'unknown', {}} end
local keys = meta('signal_keys') or ''
local _, counted_as = string.find(keys, signal.key or '-', 1, true) -- older clients give none
if counted_as then return {string.match(keys, '^%l+', counted_as + 1), {}} end
if not OPEN[status] then return {'closed', {}} end
if unfinished then return {'unfinished'} end
local is_python = meta('has_workflow') or string.find(meta('request'), '"kind":"workflow"', 1, true)
local id = answering(signal.step)
local s = get(id)
if not s then
  if signal.count ~= tostring(counts.count) then return {'search', tostring(counts.count)} end
  local found = waiting_of(signal.found)
  if #found > 1 then return {'unclear', {}} end
  id = found[1] or id
  s = get(id)
  if not s and counts.asking > 0 and not is_python then return {'unknown', {}} end
end
if s and OVER[s.state] and repeats(spec_of(id)) and id ~= signal.step then id, s = signal.step, nil end
if s and OVER[s.state] then
  local spec = spec_of(id)
  local has_value = s.state ~= 'skipped' and (takes_signal(id) or spec.at_most_once)
  return {has_value and 'over' or 'unknown', {}}
end
local options = s and takes_signal(id) and (spec_of(id).params or {}).wait
if options and (options.answer_schema or options.who) and signal.checked ~= id then
  return {'check', {id, (select(2, spec_of(id))), redis.call('HGET', R .. ':info', id) or '{}'}}
end
if not s and not is_python and signal.checked ~= id then return {'check', {id, '', '{}'}} end
local by = signal.by ~= '' and signal.by or nil
local received = signal.author and cjson.encode(signal.author) or by and cjson.encode({by = by})
if s and s.state == 'waiting_signal' and not sleeps(spec_of(id)) then
  event('signal', id, nil, nil, received)
  end_wait(s, value, by)
  counted(signal.key, 'taken ')
  local sends = take_ready(signal.resend_ms)
  return {'taken', sends, unfinished and 1 or 0, priority}
end
if s and not takes_signal(id) then return {'unknown', {}} end
if (s or not is_python) and redis.call('HEXISTS', R .. ':signals', id) == 1 then return {'over', {}} end
local is_unchecked = not s and not signal.met
if by or is_unchecked then value = value .. '\n' .. (by or '') end
if is_unchecked then value = value .. '\n' .. (signal.groups and cjson.encode(signal.groups) or '*') end
local bytes = tonumber(meta('signal_bytes') or 0) + #id + #value
if redis.call('HLEN', R .. ':signals') >= signal.max_kept or bytes > signal.max_bytes then return {'full', {}} end
keep_early_signal(id, value)
redis.call('HSET', R, 'signal_bytes', bytes)
count('signals', tenant, 1)
increase('bytes', #id + #value)
event('signal', id, nil, nil, received)
counted(signal.key, 'kept  ')
return {'kept', {}}
