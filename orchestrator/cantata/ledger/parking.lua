-- Functions that keep an error of one item of the sweep apart, behind lib.lua. An item that failed MAX_TRIES times is parked: it leaves its list, so that it
-- is in nobody's way, and S:parked keeps it until somebody has it tried again or drops it (unpark.lua).

local MAX_TRIES = 3
local TRY_AGAIN_MS = {5000, 30000} -- after the first and the second failure
local FORGOTTEN_MS = 600000        -- after its last failure an item that is not parked counts as one that never failed

local STEP, ATTEMPT, RUN = '^([^|]*)|(.*)$', '^([^|]*)|%d+|(.*)$', '^(.*)$'

-- Of each duty: the list in which its items stand, how they name their run and step, and how a name begins in the list.
local DUTIES = {
  unfinished = {':unfinished', RUN},
  leases    = {':leases', '^([^|]*)|%d+|[^|]*|(.*)$'},
  timers    = {':due', '^[^|]*|([^|]*)|(.*)$'},
  permits   = {':due', STEP, 'permit|'},
  lost      = {':ready', STEP},
  sends     = {':ready', STEP},
  tasks     = {':tasks', ATTEMPT},
  clearing  = {':clearing', RUN}, -- the only hash: an item has a place in it
  expiry    = {':finished', RUN},
  item_ends = {':item_ends'},
  schedules = {':schedules'},
}

local faults = {} -- of this call: duty, item, error, number of its failures, ...

-- Puts an item into its list, where the sweep looks at it at a time (ms).
local function put_back(duty, item, at, place)
  local list, _, prefix = unpack(DUTIES[duty])
  if place then redis.call('HSET', S .. list, item, place) else redis.call('ZADD', S .. list, at, (prefix or '') .. item) end
end

-- Appends an event to the run of an item, if it has one that is open.
local function event_of_item(duty, item, kind, detail)
  local pattern = DUTIES[duty][2]
  if not pattern then return end
  local id, step = string.match(item, pattern)
  if not id then return end
  pcall(function() -- its run may be what cannot be read
    use(id)
    if OPEN[status] then event(kind, step, nil, nil, cjson.encode(detail)) end
    write_changes()
  end)
  discard()
end

local function park_item(duty, item, place, why)
  local list, _, prefix = unpack(DUTIES[duty])
  if place then redis.call('HDEL', S .. list, item)
  elseif duty == 'schedules' then
    redis.call('ZADD', S .. list, 'inf', item) -- which has it listed
    redis.call('HSET', schedule_key(item), 'error', 'it is not looked at any more, since that failed ' .. MAX_TRIES .. ' times: ' .. why)
  else redis.call('ZREM', S .. list, (prefix or '') .. item) end
  event_of_item(duty, item, 'parked', {duty = duty, message = 'the sweep cannot handle it: ' .. why .. '; it tried ' .. MAX_TRIES ..
    ' times, and does not any more: see `submit parked list`'})
end

-- Records that an item failed: it is tried again later, or parked.
local function record_failure(duty, item, why, version, place)
  local key, field = S .. ':parked', duty .. '|' .. item
  local known = redis.call('HGET', key, field)
  local record = known and cjson.decode(known)
  if not record or now - record.at > FORGOTTEN_MS then record = {tries = 0, since = now} end
  record.tries, record.at, record.error, record.version, record.place = record.tries + 1, now, why, version, place
  record.parked = record.tries >= MAX_TRIES
  redis.call('HSET', key, field, cjson.encode(record))
  if record.parked then pcall(park_item, duty, item, place, why)
  elseif not place then put_back(duty, item, now + TRY_AGAIN_MS[record.tries]) end
  for _, value in ipairs({duty, item, why, record.tries}) do faults[#faults + 1] = value end
  return record.tries
end

-- Calls a function that handles an item. An error of it costs this item, of which nothing is written that was not yet.
local function isolate(duty, item, version, handle, place)
  local is_done, why = pcall(function()
    handle()
    write_changes()
  end)
  if is_done then return end
  discard()
  forget_work()
  record_failure(duty, item, reason_of(why), version, place)
end

-- Looks at some of the items that failed: parked ones whose run has ended and those whose schedule is gone are forgotten, and those that another version parked are tried again.
local function look_at_parked(version, count)
  local key = S .. ':parked'
  local found = redis.call('HSCAN', key, now, 'COUNT', count)[2] -- from anywhere on
  for i = 1, math.min(#found, 2 * count), 2 do
    local is_readable, record = pcall(cjson.decode, found[i + 1])
    local duty, item = string.match(found[i], '^([^|]*)|(.*)$')
    local known = DUTIES[duty]
    if not is_readable or type(record) ~= 'table' then
      redis.call('HDEL', key, found[i])
    elseif known then -- else a newer version's
      local is_gone = not record.parked and now - record.at > FORGOTTEN_MS
      if duty == 'schedules' then
        is_gone = is_gone or redis.call('EXISTS', schedule_key(item)) == 0
      elseif record.parked and known[2] and known[2] ~= RUN then -- what is still tried may only leave its list with its third failure
        local id = string.match(item, known[2]) -- none: it names no run, and stays until somebody drops it
        local of_run = id and redis.pcall('HGET', S .. ':run:' .. id, 'status')
        is_gone = id and type(of_run) ~= 'table' and not OPEN[of_run] -- a table is an error: the run cannot be read
      end
      if is_gone then
        redis.call('HDEL', key, found[i])
      elseif record.parked and record.version ~= version then
        redis.call('HDEL', key, found[i])
        put_back(duty, item, now, record.place)
      end
    end
  end
end
