-- Looks through the steps of a shard that wait for a person, those that have waited longest first, from behind a place.
-- ARGV: what is wanted (JSON): {at (ms) and member: the place, at "" for the first, most_found, most_looked, tenant?, labels?: {name: value}, who?: a name
-- or group that may answer, only?: this run|step and no other, request_bytes to reply}
-- Replies {last step looked at (run|step), since when it waits, 1 if there are no more,
-- {run, step, since (ms), spec, info, when its time is over (ms) or "", kind of the run, its labels, beginning of its request}, ...}; of a step that cannot
-- be read {run, step, since (ms), why}, unless a filter cannot be applied to it.
local wanted = cjson.decode(ARGV[1])
local place_at = tonumber(wanted.at)

-- Those who may answer, by the options of a wait; nil for all.
local function who_of(options, info)
  if not options.who then return nil end
  local found = {}
  for _, name in ipairs(options.who) do found[name] = true end
  for _, name in ipairs(info.escalated_at_ms and options.escalate_to or {}) do found[name] = true end
  return found
end

local function row_of(id, step, since)
  use(id)
  if not OPEN[status] or (wanted.tenant and wanted.tenant ~= tenant) then return nil end
  local labels = look_at(meta('labels') or '{}')
  if next(wanted.labels or {}) then
    local known = cjson.decode(labels)
    for name, value in pairs(wanted.labels) do
      if known[name] ~= value then return nil end
    end
  end
  local spec, text = spec_of(step)
  local info = look_at(redis.call('HGET', R .. ':info', step) or '{}')
  look_at(text)
  local who = who_of(spec.kind == 'wait' and spec.params and spec.params.wait or {}, cjson.decode(info))
  if wanted.who and who and not who[wanted.who] then return nil end
  local due = redis.call('ZSCORE', S .. ':due', 'wait|' .. id .. '|' .. step) or ''
  return {id, step, since, text, info, due, kind_of_run, labels, truncate(look_at(meta('request')), wanted.request_bytes)}
end

local reply = {'', '', 0}
local function add(member, since)
  local id, step = string.match(member, '^([^|]*)|(.*)$')
  if not id then return end -- no step: an entry that only Redis's own commands write
  tenant = nil -- which row_of reads
  local is_read, row = pcall(row_of, id, step, since)
  if not is_read then
    local is_wanted = (not wanted.tenant or tenant == wanted.tenant) and not wanted.who and next(wanted.labels or {}) == nil
    row = is_wanted and {id, step, since, reason_of(row)} or nil
  end
  reply[#reply + 1] = row
end

if wanted.only then
  local since = redis.call('ZSCORE', S .. ':asking', wanted.only)
  if since then add(wanted.only, since) end
  return reply
end
local rank = place_at and redis.call('ZCOUNT', S .. ':asking', '-inf', '(' .. wanted.at) or 0
local looked = 0
while looked < wanted.most_looked do
  local entries = redis.call('ZRANGE', S .. ':asking', rank, rank + math.min(100, wanted.most_looked - looked) - 1, 'WITHSCORES')
  if #entries == 0 then
    reply[3] = 1
    return reply
  end
  for i = 1, #entries, 2 do
    local member, since = entries[i], entries[i + 1]
    rank = rank + 1
    if tonumber(since) ~= place_at or is_before(wanted.member, member) then
      looked = looked + 1
      reply[1], reply[2] = member, since
      add(member, since)
      if #reply - 3 >= wanted.most_found or has_seen_enough() then return reply end
    end
  end
end
return reply
