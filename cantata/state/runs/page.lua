-- Looks through a shard's runs, from the newest, or from behind a place, and replies those that are asked for.
-- ARGV: what is wanted (JSON): {at (ms) and run: the place, at "" for the newest, most_found, most_looked, tenant?, statuses?: {status: true}, kind?,
-- request_bytes to reply, fields of a run to reply, words: [[spelling, ...], ...], in lower case, one of each in id, labels, session or request}
-- Replies {now (ms), last run looked at, when that was, 1 if there are no more, how many it looked at,
-- {run, when, beginning of its request, field, ...}, ...}.
local wanted = cjson.decode(ARGV[1])
local place_at = tonumber(wanted.at)

local function is_asked_for(run, key)
  local known = redis.call('HMGET', key, 'status', 'tenant', 'kind', 'cancelling', 'waits', 'time_left', 'batch')
  if not known[1] then return false end
  if wanted.tenant and wanted.tenant ~= known[2] then return false end
  if wanted.kind and wanted.kind ~= known[3] or not wanted.kind and known[3] == 'webhook' then return false end
  local shown = known[1]
  if shown == 'running' then -- as encoding.shown_status
    shown = known[4] and 'cancelling' or tonumber(known[5] or 0) > 0 and known[6] and 'waiting' or shown
  end
  if wanted.statuses and not wanted.statuses[shown] then return false end
  if #wanted.words == 0 then return not known[7] end -- thousands of rows of a batch would hide all others
  local texts = redis.call('HMGET', key, 'labels', 'session', 'request')
  local sought = table.concat({run, texts[1] or '', texts[2] or '', truncate(texts[3] or '', wanted.request_bytes)}, '\n')
  sought = string.lower(sought)
  for _, spellings in ipairs(wanted.words) do
    local is_there = false
    for _, spelling in ipairs(spellings) do is_there = is_there or string.find(sought, spelling, 1, true) ~= nil end
    if not is_there then return false end
  end
  return true
end

local function row_of(run, at, key)
  local row = {run, at, truncate(redis.call('HGET', key, 'request') or '', wanted.request_bytes)}
  for i, value in ipairs(redis.call('HMGET', key, unpack(wanted.fields))) do row[3 + i] = value end
  return row
end

local reply = {string.format('%d', now), '', '', 0, 0}
local rank = place_at and redis.call('ZCOUNT', S .. ':runs', '(' .. wanted.at, '+inf') or 0
local looked = 0
while looked < wanted.most_looked do
  local entries = redis.call('ZRANGE', S .. ':runs', rank, rank + math.min(100, wanted.most_looked - looked) - 1, 'REV', 'WITHSCORES')
  if #entries == 0 then
    reply[4] = 1
    return reply
  end
  for i = 1, #entries, 2 do
    local run, at = entries[i], entries[i + 1]
    rank = rank + 1
    if not place_at or tonumber(at) < place_at or is_before(run, wanted.run) then
      looked = looked + 1
      reply[5] = looked
      reply[2], reply[3] = run, at
      local key = S .. ':run:' .. run
      if is_asked_for(run, key) then reply[#reply + 1] = row_of(run, at, key) end
      if #reply - 5 >= wanted.most_found then return reply end
    end
  end
end
return reply
