-- The first part of every script that stores something of a tenant in a shard: all that a tenant keeps is counted here, and nowhere else. Memories, which
-- lie in a slot of their own, are counted in memory/lib.lua. quotas.py adds the counts of all shards.
-- KEYS[1] = S, {shard prefix}, for example cantata:{17}; every other key is built from it, so one call stays in one slot.
--
--   S:tenants   hash  tenant -> number of its open runs                           entries go with their last run
--   S:rows      hash  tenant -> number of those among them that are rows of       likewise
--                     batches, which do not lower the priority of others
--   S:bytes     hash  tenant -> bytes of its runs and items                       entries go with the last of them
--   S:log_bytes hash  tenant -> the bytes of log lines among them                 likewise
--   S:signals   hash  tenant -> number of early signals that its open runs keep   entries go with its last open run
--   S:names     hash  tenant -> number of its items that have a name              entries go with the last of them
--   S:sizes     hash  ended run -> its bytes, the bytes of its log lines, and     entries go with their run
--                     its tenant
--   S:items     hash  item -> its bytes, and its tenant                           entries go with their item
--   S:item_ends zset  item -> when to look whether it is still there (ms)         likewise
-- An item is what a tenant keeps beside its runs, named by its key without S: schedule:<scope>, session:<scope>, batch:<scope>, builder:<scope>, a fork
-- that is being staged, a reply in the cache. A sweep looks for the keys of an item at the time in S:item_ends and forgets it if they are gone, so the
-- counts are right again whoever deleted them: Redis when they expired or were evicted, or a process of an older version.

local S = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local ITEM_BYTES = 1000 -- of an item beside its texts: its keys, fields of its hash, entries in lists of the shard, and these counts
local ITEM_CHECK_MS = 86400000 -- until somebody looks whether an item is still there of which nobody said when it ends
local NAMED = {schedule = true, session = true, batch = true, builder = true}

-- Adds n, which may be negative, to a count of a tenant in this shard: tenants (open runs), rows, bytes, log_bytes, signals or names.
local function count(what, of_tenant, n)
  if n ~= 0 and redis.call('HINCRBY', S .. ':' .. what, of_tenant, n) <= 0 then redis.call('HDEL', S .. ':' .. what, of_tenant) end
end

-- The bytes of an item's texts as they are counted, and its tenant; nil if it is not counted.
local function charged(item)
  local bytes, of_tenant = string.match(redis.call('HGET', S .. ':items', item) or '', '^(%d+) (.*)$')
  return bytes and bytes - ITEM_BYTES, of_tenant
end

-- Counts an item no more.
local function discharge(item)
  local before, of_tenant = charged(item)
  redis.call('ZREM', S .. ':item_ends', item)
  if not before then return end
  redis.call('HDEL', S .. ':items', item)
  count('bytes', of_tenant, -before - ITEM_BYTES)
  if NAMED[string.match(item, '^%a*')] then count('names', of_tenant, -1) end
end

-- Counts an item whose texts have so many bytes, in place of what was counted for it. `ends_at` (ms) is when its keys expire, if they do.
local function charge(of_tenant, item, bytes, ends_at)
  local before, owner = charged(item)
  if before and owner ~= of_tenant then
    discharge(item)
    before = nil
  end
  bytes = math.max(0, math.floor(bytes))
  if not before then
    count('bytes', of_tenant, ITEM_BYTES)
    if NAMED[string.match(item, '^%a*')] then count('names', of_tenant, 1) end
  end
  if bytes ~= before then
    redis.call('HSET', S .. ':items', item, string.format('%d ', bytes + ITEM_BYTES) .. of_tenant)
    count('bytes', of_tenant, bytes - (before or 0))
  end
  redis.call('ZADD', S .. ':item_ends', ends_at or now + ITEM_CHECK_MS, item)
end

-- Adds n bytes, which may be negative, to an item that is counted; `ends_at` (ms) is when its keys expire, if that has changed.
local function charge_more(item, n, ends_at)
  if ends_at then redis.call('ZADD', S .. ':item_ends', 'XX', ends_at, item) end
  if n == 0 then return end
  local before, of_tenant = charged(item)
  if not before then return end
  n = math.max(n, -before)
  redis.call('HSET', S .. ':items', item, string.format('%d ', before + n + ITEM_BYTES) .. of_tenant)
  count('bytes', of_tenant, n)
end

-- Discharges an item whose keys are gone, and replies true; otherwise sets when to look again.
local function check_item(item)
  local look_in
  for _, part in ipairs({'', ':queue', ':history'}) do
    local ends_in = redis.call('PTTL', S .. ':' .. item .. part) -- -2: there is none; -1: it stays
    if ends_in ~= -2 then look_in = math.max(look_in or 1, ends_in == -1 and ITEM_CHECK_MS or ends_in + 1) end
  end
  if not look_in then
    discharge(item)
    return true
  end
  redis.call('ZADD', S .. ':item_ends', now + math.min(look_in, ITEM_CHECK_MS), item)
end
