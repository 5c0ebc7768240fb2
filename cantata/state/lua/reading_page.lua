-- Looks through a shard's runs, from the newest, or from behind a place, and replies those that are asked for.
-- ARGV: place: when (ms) and run, both "" for the newest; most runs to find, most to look at; "=" and a tenant, or "" for all;
-- ",status,status,", a kind, each "" for any; bytes of the request to reply, how many fields follow; these fields of a run;
-- then words that must all be in id, labels, session or request, in lower case; each as a line for each way it may be written there.
-- Replies {now (ms), last run looked at, when that was, 1 if there are no more, how many it looked at,
-- {run, when, beginning of its request, field, ...}, ...}.
local place_at, place_run = tonumber(ARGV[1]), ARGV[2]
local most_found, most_looked = tonumber(ARGV[3]), tonumber(ARGV[4])
local of_tenant, of_status, of_kind, request_bytes = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local fields, words = {}, {}
for i = 1, tonumber(ARGV[9]) do fields[i] = ARGV[9 + i] end
for i = 10 + #fields, #ARGV do
  local spellings = {}
  for spelling in string.gmatch(ARGV[i], '[^\n]+') do spellings[#spellings + 1] = spelling end
  words[#words + 1] = spellings
end

-- By their bytes, as Redis sorts: Lua's own order is that of a language.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local function is_asked_for(run, key)
  local known = redis.call('HMGET', key, 'status', 'tenant', 'kind')
  if not known[1] then return false end
  if of_tenant ~= '' and of_tenant ~= '=' .. (known[2] or '') then return false end
  if of_kind ~= '' and of_kind ~= known[3] then return false end
  if of_status ~= '' and not string.find(of_status, ',' .. known[1] .. ',', 1, true) then return false end
  if #words == 0 then return true end
  local texts = redis.call('HMGET', key, 'labels', 'session', 'request')
  local sought = table.concat({run, texts[1] or '', texts[2] or '', beginning(texts[3] or '', request_bytes)}, '\n')
  sought = string.lower(sought)
  for _, spellings in ipairs(words) do
    local is_there = false
    for _, spelling in ipairs(spellings) do is_there = is_there or string.find(sought, spelling, 1, true) ~= nil end
    if not is_there then return false end
  end
  return true
end

local function row_of(run, at, key)
  local row = {run, at, beginning(redis.call('HGET', key, 'request') or '', request_bytes)}
  for i, value in ipairs(redis.call('HMGET', key, unpack(fields))) do row[3 + i] = value end
  return row
end

local time = redis.call('TIME')
local reply = {string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)), '', '', 0, 0}
local rank = place_at and redis.call('ZCOUNT', S .. ':runs', '(' .. ARGV[1], '+inf') or 0
local looked = 0
while looked < most_looked do
  local entries = redis.call('ZRANGE', S .. ':runs', rank, rank + math.min(100, most_looked - looked) - 1, 'REV', 'WITHSCORES')
  if #entries == 0 then
    reply[4] = 1
    return reply
  end
  for i = 1, #entries, 2 do
    local run, at = entries[i], entries[i + 1]
    rank = rank + 1
    if not place_at or tonumber(at) < place_at or is_before(run, place_run) then
      looked = looked + 1
      reply[5] = looked
      reply[2], reply[3] = run, at
      local key = run_key(run)
      if is_asked_for(run, key) then reply[#reply + 1] = row_of(run, at, key) end
      if #reply - 5 >= most_found then return reply end
    end
  end
end
return reply
