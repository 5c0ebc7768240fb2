-- Stages the parts of a fork, a piece a call; fork.lua makes a run of them. A stage expires.
-- A repeated piece changes nothing: the source is over, and the end of each step is logged once.
-- ARGV: the fork, its source, the stage (as a run's id), what, then of what is
--   begin: who forks it (JSON), part, ...   creates the keys, so that an evicted one is noticed
--   copy:  part, cursor, count   some fields of the source, states as of steps that ended in no attempt of this run
--   put:   part, field, value, ...
--   drop:  part, field, ...
--   push:  part, how many are there, value, ...
--   blobs: part, cursor, count   what some outputs refer to
--   ends:  part, after, count    the ends of the steps that are taken over, as the source's log has them after an entry
--   unlogged:  part, cursor, count   the ends of those of which the log says nothing
-- Replies {'ok', where to go on ('0' at the end), failures of the plan among the rest}, or {'lost'}: Redis evicted it, or it took too long.
local STAGED_MS = 600000
local ENDINGS = {done = true, failed = true, skipped = true, expanded = true, missed_deadline = true}
local source, place, what, part, at, most = unpack(ARGV, 2, 7)
local RS, item = S .. ':run:' .. source, 'run:' .. place .. ':log'
use(place)

-- The bytes of texts.
local function sum(texts)
  local bytes = 0
  for _, text in ipairs(texts) do bytes = bytes + #(text or '') end
  return bytes
end

if what == 'begin' then
  for i = 6, #ARGV do
    redis.call('DEL', R .. ARGV[i])
    redis.call('HSET', R .. ARGV[i], '', '')
    redis.call('PEXPIRE', R .. ARGV[i], STAGED_MS)
  end
  redis.call('DEL', R .. ':log')
  charge(redis.call('HGET', RS, 'tenant') or '', item, RUN_BYTES, now + STAGED_MS)
  local detail = cjson.decode(ARGV[5])
  detail.forked_from = source
  event('accepted', nil, nil, nil, cjson.encode(detail))
  redis.call('PEXPIRE', R .. ':log', STAGED_MS)
  return {'ok', '0', 0}
end
if what == 'push' then
  local there = redis.call('LLEN', R .. part)
  if there == tonumber(at) then
    redis.call('RPUSH', R .. part, unpack(ARGV, 7))
    if there == 0 then redis.call('PEXPIRE', R .. part, STAGED_MS) end
  elseif there ~= tonumber(at) + #ARGV - 6 then
    return {'lost'}
  end
  return {'ok', '0', 0}
end
if redis.call('EXISTS', R .. part, R .. ':state', R .. ':logged', R .. ':log') < 4 then return {'lost'} end

local function scan(key) return unpack(redis.call('HSCAN', key, at, 'COUNT', most)) end

-- Appends the ends of steps that are taken over to the log, except those that were appended: {step, event, detail}.
local function append_ends(ends)
  local ids, added = {}, {}
  for i, each in ipairs(ends) do ids[i] = each[1] end
  if #ids == 0 then return end
  local states, known = redis.call('HMGET', R .. ':state', unpack(ids)), redis.call('HMGET', R .. ':logged', unpack(ids))
  for i, each in ipairs(ends) do
    if states[i] and OVER[string.match(states[i], '^%S+')] and not known[i] then
      event(each[2], each[1], nil, nil, each[3])
      charge_more(item, #(each[3] or ''))
      added[#added + 1] = each[1]; added[#added + 1] = ''
    end
  end
  if #added > 0 then redis.call('HSET', R .. ':logged', unpack(added)) end
end

-- The bytes of fields that are staged.
local function bytes_of(fields)
  local bytes = 0
  for i, value in ipairs(redis.call('HMGET', R .. part, unpack(fields))) do bytes = bytes + (value and #fields[i] + #value or 0) end
  return bytes
end

local TAKES = {}

function TAKES.copy()
  local cursor, flat = scan(RS .. part)
  if part == ':state' then
    for i = 1, #flat, 2 do
      local s = parse(flat[i], flat[i + 1])
      flat[i + 1] = (OVER[s.state] and s.state or 'skipped') .. ' 0 0 ' .. s.taken .. ' 0 0 0 -'
    end
  end
  local new = 0 -- fields; none if this call is repeated
  for i = 1, #flat, 1000 do new = new + redis.call('HSET', R .. part, unpack(flat, i, math.min(i + 999, #flat))) end
  if new > 0 then charge_more(item, sum(flat)) end
  return cursor
end

function TAKES.put()
  local fields = {}
  for i = 6, #ARGV, 2 do fields[#fields + 1] = ARGV[i] end
  local before = bytes_of(fields)
  redis.call('HSET', R .. part, unpack(ARGV, 6))
  charge_more(item, sum({unpack(ARGV, 6)}) - before)
end

function TAKES.drop()
  local fields = {unpack(ARGV, 6)}
  charge_more(item, -bytes_of(fields))
  redis.call('HDEL', R .. part, unpack(fields))
end

function TAKES.blobs()
  local cursor, outs = scan(R .. ':out')
  for i = 2, #outs, 2 do
    local digest = string.match(outs[i], '^@(.*)$')
    local text = digest and redis.call('HGET', RS .. part, digest)
    if text and redis.call('HSET', R .. part, digest, text) == 1 then charge_more(item, #text) end
  end
  return cursor
end

function TAKES.ends()
  local entries, ends = redis.call('XRANGE', RS .. part, '(' .. at, '+', 'COUNT', most), {}
  for _, entry in ipairs(entries) do
    local fields = {}
    for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
    if ENDINGS[fields.t] then ends[#ends + 1] = {fields.s, fields.t, fields.d} end
  end
  append_ends(ends)
  return #entries > 0 and entries[#entries][1] or '0'
end

function TAKES.unlogged()
  local cursor, cells = scan(R .. part)
  local ends, failures = {}, 0
  for i = 1, #cells, 2 do
    if cells[i] ~= '' then
      ends[#ends + 1] = {cells[i], 'skipped'}
      if string.match(cells[i + 1], '^failed ') and is_of_the_plan(spec_of(cells[i])) then failures = failures + 1 end
    end
  end
  append_ends(ends)
  return cursor, failures
end

local cursor, failures = TAKES[what]()
return {'ok', cursor or '0', failures or 0}
