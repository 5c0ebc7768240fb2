-- Looks through a shard's runs, from the newest, or from behind a place, and replies those that are asked for, or counts them.
-- ARGV: what is wanted (JSON): {at (ms) and run: the place, at "" for the newest, most_found, most_looked, tenant?, statuses?: {status: true}, kind?,
-- since? (ms), request_bytes to reply from its beginning and from its end, fields of a run to reply, counts?: true,
-- words: [[spelling, ...], ...], in lower case, one of each in id, labels, session or request}
-- Replies {now (ms), last run looked at, when that was, 1 if there are no more, how many it looked at,
-- {run, when, beginning and end of its request, field, ...}, ...}; with `counts`, {status, how many}, ... instead of runs. Of a run that cannot be read
-- {run, when, '', why}, in a list of all runs.
local wanted = cjson.decode(ARGV[1])
local place_at = tonumber(wanted.at)

-- The status of a run that is asked for, as it is shown; else nil.
local function asked_for(run, key)
  local known = redis.call('HMGET', key, 'status', 'tenant', 'kind', 'cancelling', 'waits', 'time_left', 'batch')
  if not known[1] then return nil end
  if wanted.tenant and wanted.tenant ~= known[2] then return nil end
  if wanted.kind and wanted.kind ~= known[3] or not wanted.kind and known[3] == 'webhook' then return nil end
  local shown = known[1]
  if shown == 'running' then -- as encoding.shown_status
    shown = known[4] and 'cancelling' or (tonumber(known[5] or 0) or 0) > 0 and known[6] and 'waiting' or shown
  end
  if wanted.statuses and not wanted.statuses[shown] then return nil end
  if #wanted.words == 0 then return not known[7] and shown or nil end -- thousands of rows of a batch would hide all others
  local texts = redis.call('HMGET', key, 'labels', 'session', 'request')
  local sought = table.concat({run, look_at(texts[1]), texts[2] or '', truncate(look_at(texts[3]), wanted.request_bytes)}, '\n')
  sought = string.lower(sought)
  for _, spellings in ipairs(wanted.words) do
    local is_there = false
    for _, spelling in ipairs(spellings) do is_there = is_there or string.find(sought, spelling, 1, true) ~= nil end
    if not is_there then return nil end
  end
  return shown
end

local function row_of(run, at, key)
  local request = look_at(redis.call('HGET', key, 'request'))
  local row = {run, at, truncate(request, wanted.request_bytes)}
  if #request > wanted.request_bytes then -- no text begins with the rest of a character
    row[3] = row[3] .. string.gsub(string.sub(request, math.max(#row[3] + 1, #request - wanted.request_bytes)), '^[\128-\191]+', '')
  end
  for i, value in ipairs(redis.call('HMGET', key, unpack(wanted.fields))) do row[3 + i] = value end
  return row
end

local lists_all = not (wanted.tenant or wanted.kind or wanted.statuses or wanted.counts or #wanted.words > 0)
local reply, counts = {string.format('%d', now), '', '', 0, 0}, {}
local function replied()
  for shown, count in pairs(counts) do reply[#reply + 1] = {shown, count} end
  return reply
end
local rank = place_at and redis.call('ZCOUNT', S .. ':runs', '(' .. wanted.at, '+inf') or 0
local looked = 0
while looked < wanted.most_looked do
  local entries = redis.call('ZRANGE', S .. ':runs', rank, rank + math.min(100, wanted.most_looked - looked) - 1, 'REV', 'WITHSCORES')
  if #entries == 0 then
    reply[4] = 1
    return replied()
  end
  for i = 1, #entries, 2 do
    local run, at = entries[i], entries[i + 1]
    rank = rank + 1
    if wanted.since and tonumber(at) < wanted.since then
      reply[4] = 1
      return replied()
    end
    if not place_at or tonumber(at) < place_at or is_before(run, wanted.run) then
      looked = looked + 1
      reply[5] = looked
      reply[2], reply[3] = run, at
      local key = S .. ':run:' .. run
      local is_read, shown = pcall(asked_for, run, key)
      if not is_read then
        if lists_all then reply[#reply + 1] = {run, at, '', reason_of(shown)} end
      elseif shown and wanted.counts then counts[shown] = (counts[shown] or 0) + 1
      elseif shown then reply[#reply + 1] = row_of(run, at, key) end
      if #reply - 5 >= wanted.most_found or has_seen_enough() then return replied() end
    end
  end
end
return replied()
